package store

import (
	"context"
	"time"

	"kiln/gen/db"
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

// InstalledPackages are the packages, by name and version.
func (s *Store) InstalledPackages(ctx context.Context) ([]InstalledPackage, error) {
	rows, err := db.New(s.side).InstalledPackages(ctx)
	if err != nil {
		return nil, translate(err)
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
		return translate(err)
	}
	rows := db.PutInstalledResourcesParams{Name: p.Name, Version: p.Version}
	for _, r := range resources {
		rows.ResourceTypes = append(rows.ResourceTypes, r.ResourceType)
		rows.Ids = append(rows.Ids, r.ID)
		rows.ResourceVersions = append(rows.ResourceVersions, int32(r.VersionID))
	}
	return translate(q.PutInstalledResources(ctx, rows))
}

// PackageResources are the resources that a package brought, by type and id.
func (t *Tx) PackageResources(ctx context.Context, name, version string) ([]InstalledResource, error) {
	rows, err := db.New(t.tx).InstalledResources(ctx, db.InstalledResourcesParams{Name: name, Version: version})
	if err != nil {
		return nil, translate(err)
	}
	out := make([]InstalledResource, len(rows))
	for i, r := range rows {
		out[i] = InstalledResource{r.ResourceType, r.ID, int(r.ResourceVersion), r.Shared}
	}
	return out, nil
}

// DropPackage deletes a package. Its resources stay stored.
func (t *Tx) DropPackage(ctx context.Context, name, version string) error {
	return translate(db.New(t.tx).DeleteInstalledPackage(ctx, db.DeleteInstalledPackageParams{Name: name, Version: version}))
}
