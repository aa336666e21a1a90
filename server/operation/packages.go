package operation

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/parameters"
	"kiln/server/store"
)

// packagesOperation is GET /$packages: the packages that were installed on the running
// service, by name, with the definitions that another version of the package has replaced.
func (s *Set) packagesOperation() Operation {
	return Operation{Definition: local + "packages", Needs: onType(access.Admin), Run: func(ctx context.Context, _ Request, _ *Inputs) (interaction.Response, error) {
		if err := s.CheckAllowed(ctx, access.Admin, "", ""); err != nil {
			return interaction.Response{}, err
		}
		list, err := s.Store.InstalledPackages(ctx)
		if err != nil {
			return interaction.Response{}, err
		}
		replaced, err := s.Store.ReplacedResources(ctx)
		if err != nil {
			return interaction.Response{}, err
		}
		byPackage := make(map[[2]string][]store.ReplacedResource)
		for _, r := range replaced {
			of := [2]string{r.Name, r.Version}
			byPackage[of] = append(byPackage[of], r)
		}
		var out []parameters.Parameter
		for _, p := range list {
			out = append(out, reportInstalled(p, byPackage[[2]string{p.Name, p.Version}]))
		}
		return parametersResponse(http.StatusOK, out)
	}}
}

// reportInstalled describes an installed package, and which of its definitions another version of the package has
// replaced.
func reportInstalled(p store.InstalledPackage, replaced []store.ReplacedResource) parameters.Parameter {
	status := "installed"
	switch {
	case len(replaced) == 0:
	case len(replaced) < p.Resources:
		status = "partly-replaced"
	default:
		status = "replaced"
	}
	parts := []parameters.Parameter{
		parameters.String("name", p.Name), parameters.String("version", p.Version), parameters.String("integrity", p.Integrity),
		parameters.DateTime("installed", p.Installed.Format(time.RFC3339Nano)), parameters.Integer("resources", p.Resources),
		parameters.Code("status", status),
	}
	for _, r := range replaced {
		parts = append(parts, parameters.Parts("replaced", parameters.Reference("reference", r.ResourceType+"/"+r.ID), parameters.String("by", r.By)))
	}
	return parameters.Parts("package", parts...)
}

// removePackage is POST /$remove-package: it deletes the resources of an installed package, in one transaction. It
// keeps resources changed since, and those of other installed packages. A package that is not installed is
// not-found, 404.
func (s *Set) removePackage() Operation {
	return Operation{Definition: local + "remove-package", Needs: onType(access.Admin), Run: s.runRemovePackage}
}

func (s *Set) runRemovePackage(ctx context.Context, _ Request, in *Inputs) (interaction.Response, error) {
	if err := s.CheckAllowed(ctx, access.Admin, "", ""); err != nil {
		return interaction.Response{}, err
	}
	name, dryRun := in.Text("name"), in.True("dry-run")
	version, err := s.installedVersion(ctx, name, in.Text("version"))
	if err != nil {
		return interaction.Response{}, err
	}
	var out []parameters.Parameter
	var deleted int
	err = s.Store.InTx(ctx, func(tx *store.Tx) error {
		out, deleted = nil, 0
		if err := tx.Lock(ctx, installLock); err != nil {
			return err
		}
		list, err := tx.PackageResources(ctx, name, version)
		if err != nil {
			return err
		}
		var ws []*store.Write
		for _, r := range list {
			reference := parameters.Reference("reference", r.ResourceType+"/"+r.ID)
			reason, gone, err := keepReason(ctx, tx, r)
			switch {
			case err != nil:
				return err
			case gone:
			case reason != "":
				out = append(out, parameters.Parts("resource", parameters.Code("action", "keep"), reference, parameters.String("reason", reason)))
			default:
				ws = append(ws, &store.Write{Method: fhir.DELETE, ResourceType: r.ResourceType, ID: r.ID})
				out = append(out, parameters.Parts("resource", parameters.Code("action", "delete"), reference))
			}
		}
		deleted = len(ws)
		if dryRun {
			return errDryRun
		}
		if len(ws) > 0 {
			if err := tx.Write(ctx, ws); err != nil {
				return err
			}
		}
		return tx.DropPackage(ctx, name, version)
	})
	if err := s.packagesWritten(ctx, err); err != nil {
		return interaction.Response{}, err
	}
	return parametersResponse(http.StatusOK, slices.Concat([]parameters.Parameter{
		parameters.String("name", name), parameters.String("version", version), parameters.Boolean("dryRun", dryRun),
		parameters.Integer("delete", deleted), parameters.Integer("keep", len(out)-deleted)}, out))
}

// keepReason is why a resource of a package is not to be deleted, "" when it is; gone
// says that it is deleted already.
func keepReason(ctx context.Context, tx *store.Tx, r store.InstalledResource) (reason string, gone bool, err error) {
	v, err := tx.Read(ctx, r.ResourceType, r.ID)
	if outcome.Is(err, outcome.CodeNotFound, outcome.CodeDeleted) {
		return "", true, nil
	}
	switch {
	case err != nil:
		return "", false, err
	case r.Shared:
		return "another installed package brought it too", false, nil
	case v.VersionID != r.VersionID:
		return "it has been changed since", false, nil
	}
	return "", false, nil
}

// installedVersion is the version of a package that is meant: the one named, or the
// only one that is installed.
func (s *Set) installedVersion(ctx context.Context, name, version string) (string, error) {
	list, err := s.Store.InstalledPackages(ctx)
	if err != nil {
		return "", err
	}
	var versions, names []string
	for _, p := range list {
		names = append(names, p.Name+"@"+p.Version)
		if p.Name == name && (version == "" || p.Version == version) {
			versions = append(versions, p.Version)
		}
	}
	switch len(versions) {
	case 1:
		return versions[0], nil
	case 0:
		if len(names) == 0 {
			names = []string{"none"}
		}
		return "", outcome.New(outcome.CodeNotFound, "the package %s is not installed; installed: %s", outcome.Clip(name), strings.Join(names, ", "))
	}
	return "", outcome.Invalid("of %s several versions are installed, %s: name one", outcome.Clip(name), strings.Join(versions, ", "))
}
