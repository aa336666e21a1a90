package store

import (
	"context"
	"time"

	"kiln/gen/db"
	"kiln/server/fhir"
)

// InstalledPackage is a FHIR package that was installed on the running service.
type InstalledPackage struct {
	Name, Version string
	Integrity     string // digest of the archive, "sha512-…"
	Installed     time.Time
	Resources     int // that it brought
}

// InstalledResource is a resource that a package brought.
type InstalledResource struct {
	ResourceType, ID string
	VersionID        int  // that the package made, or found
	Shared           bool // another installed package brought it too
}

// ReplacedResource is a resource of an installed package that another version of the package has written since.
type ReplacedResource struct {
	Name, Version    string // of the package that brought the resource
	ResourceType, ID string
	By               string // version of the package that wrote the newest one
}

// ReplacedResources are the replaced resources of all installed packages, by package, type and id.
func (s *Store) ReplacedResources(ctx context.Context) ([]ReplacedResource, error) {
	rows, err := db.New(s.side).ReplacedResources(ctx)
	if err != nil {
		return nil, translateError(err)
	}
	out := make([]ReplacedResource, len(rows))
	for i, r := range rows {
		out[i] = ReplacedResource{r.Name, r.Version, r.ResourceType, r.ID, r.ReplacedBy}
	}
	return out, nil
}

// InstalledResources are the current resources of a type that installed packages brought, by id.
func (s *Store) InstalledResources(ctx context.Context, typ string) (map[string]fhir.Version, error) {
	ids, err := db.New(s.side).InstalledIDs(ctx, typ)
	if err != nil {
		return nil, translateError(err)
	}
	if len(ids) == 0 {
		return nil, nil
	}
	return s.ReadMany(ctx, typ, ids)
}

// InstalledPackages are the packages, by name and version.
func (s *Store) InstalledPackages(ctx context.Context) ([]InstalledPackage, error) {
	rows, err := db.New(s.side).InstalledPackages(ctx)
	if err != nil {
		return nil, translateError(err)
	}
	out := make([]InstalledPackage, len(rows))
	for i, r := range rows {
		out[i] = InstalledPackage{Name: r.Name, Version: r.Version, Integrity: r.Integrity, Installed: r.Installed.UTC(), Resources: int(r.Resources)}
	}
	return out, nil
}

// PutPackage notes that a package brought resources.
func (t *Tx) PutPackage(ctx context.Context, p InstalledPackage, resources []InstalledResource) error {
	q := db.New(t.tx)
	err := q.PutInstalledPackage(ctx, db.PutInstalledPackageParams{Name: p.Name, Version: p.Version, Integrity: p.Integrity, Installed: p.Installed})
	if err != nil {
		return translateError(err)
	}
	if err := q.BumpDefinitions(ctx); err != nil {
		return translateError(err)
	}
	rows := db.PutInstalledResourcesParams{Name: p.Name, Version: p.Version}
	for _, r := range resources {
		rows.ResourceTypes = append(rows.ResourceTypes, r.ResourceType)
		rows.Ids = append(rows.Ids, r.ID)
		rows.ResourceVersions = append(rows.ResourceVersions, int32(r.VersionID))
	}
	return translateError(q.PutInstalledResources(ctx, rows))
}

// PackageResources are the resources that a package brought, by type and id.
func (t *Tx) PackageResources(ctx context.Context, name, version string) ([]InstalledResource, error) {
	rows, err := db.New(t.tx).InstalledResources(ctx, db.InstalledResourcesParams{Name: name, Version: version})
	if err != nil {
		return nil, translateError(err)
	}
	out := make([]InstalledResource, len(rows))
	for i, r := range rows {
		out[i] = InstalledResource{r.ResourceType, r.ID, int(r.ResourceVersion), r.Shared}
	}
	return out, nil
}

// DropPackage deletes a package. Its resources stay stored.
func (t *Tx) DropPackage(ctx context.Context, name, version string) error {
	q := db.New(t.tx)
	if err := q.BumpDefinitions(ctx); err != nil {
		return translateError(err)
	}
	return translateError(q.DeleteInstalledPackage(ctx, db.DeleteInstalledPackageParams{Name: name, Version: version}))
}
