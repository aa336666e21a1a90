-- +goose Up

-- The FHIR packages that were installed on the running service, and the versions of
-- the resources that each of them brought: what removing one may delete.
CREATE TABLE installed_package (
    name      text        NOT NULL,
    version   text        NOT NULL,
    integrity text        NOT NULL,
    installed timestamptz NOT NULL,
    PRIMARY KEY (name, version)
);

CREATE TABLE installed_resource (
    name             text    NOT NULL, -- of the package
    version          text    NOT NULL, -- of the package
    resource_type    text    NOT NULL,
    id               text    NOT NULL,
    resource_version integer NOT NULL,
    PRIMARY KEY (name, version, resource_type, id)
);

-- +goose Down
DROP TABLE installed_resource;
DROP TABLE installed_package;
