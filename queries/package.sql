-- The FHIR packages that were installed on the running service.

-- name: PutInstalledPackage :exec
INSERT INTO installed_package (name, version, integrity, installed)
VALUES (@name, @version, @integrity, @installed)
ON CONFLICT (name, version) DO UPDATE SET integrity = excluded.integrity, installed = excluded.installed;

-- name: PutInstalledResources :exec
INSERT INTO installed_resource (name, version, resource_type, id, resource_version)
SELECT @name::text, @version::text, unnest(@resource_types::text[]), unnest(@ids::text[]), unnest(@resource_versions::integer[])
ON CONFLICT (name, version, resource_type, id) DO UPDATE SET resource_version = excluded.resource_version;

-- name: InstalledPackages :many
SELECT p.name, p.version, p.integrity, p.installed, count(r.id) AS resources
FROM installed_package p
LEFT JOIN installed_resource r ON r.name = p.name AND r.version = p.version
GROUP BY p.name, p.version
ORDER BY p.name, p.version;

-- InstalledResources are those of one package; shared says that another installed
-- package has brought the resource too.
-- name: InstalledResources :many
SELECT r.resource_type, r.id, r.resource_version,
    EXISTS (
        SELECT FROM installed_resource o
        WHERE o.resource_type = r.resource_type AND o.id = r.id AND (o.name, o.version) <> (r.name, r.version)
    ) AS shared
FROM installed_resource r
WHERE r.name = @name AND r.version = @version
ORDER BY r.resource_type, r.id;

-- ReplacedResources are the resources of each package that another version of the package has written since,
-- with the version that wrote the newest.
-- name: ReplacedResources :many
SELECT DISTINCT ON (r.name, r.version, r.resource_type, r.id)
    r.name, r.version, r.resource_type, r.id, o.version AS replaced_by
FROM installed_resource r
JOIN installed_resource o ON o.name = r.name AND o.resource_type = r.resource_type AND o.id = r.id AND o.resource_version > r.resource_version
JOIN installed_package p ON p.name = o.name AND p.version = o.version
ORDER BY r.name, r.version, r.resource_type, r.id, o.resource_version DESC, p.installed;

-- InstalledIDs are the ids of the resources of a type that installed packages brought.
-- name: InstalledIDs :many
SELECT DISTINCT r.id
FROM installed_resource r
WHERE r.resource_type = @resource_type
ORDER BY r.id;

-- name: DeleteInstalledPackage :exec
WITH gone AS (
    DELETE FROM installed_resource r
    WHERE r.name = @name AND r.version = @version
)
DELETE FROM installed_package p
WHERE p.name = @name AND p.version = @version;
