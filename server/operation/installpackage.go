package operation

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"kiln/definitions"
	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/fhirpackage"
	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/parameters"
	"kiln/server/store"
)

// installLock is the number of the advisory lock that serialises installations of packages.
const installLock = 0x6b706b67 // "kpkg"

// errDryRun undoes a transaction of a dry run.
var errDryRun = errors.New("interaction: dry run")

// installPackage is $install-package: it stores the definitions of a FHIR package (a .tgz of a registry) as
// resources, in one transaction: SearchParameters, profiles, value sets and other resources with a canonical
// URL. It updates a stored resource of the same URL if the contents differ. A new resource keeps its id if
// that is free.
//
// Published packages contain mistakes. The report names file and element of each. A readable definition is
// stored all the same. Left out are unreadable definitions, search parameters that could never work, and those
// with the code of a compiled one. A search parameter that R4 has already is reported as "existing", not as
// "refused". With strict=true an error is invalid, 422, and nothing is stored.
//
// dry-run=true reports the changes and makes none. integrity=sha512-… is the required digest of the archive. The
// operation fails with invalid, 400, if the archive is no package, is damaged or contains paths outside of
// itself.
// Spec: https://hl7.org/fhir/packages.html.
func (s *Set) installPackage() Operation {
	return Operation{Definition: local + "install-package", Needs: onType(access.Admin), Run: s.runInstallPackage,
		Accepts: []string{"application/gzip", "application/x-gzip", "application/x-gtar", "application/x-tgz", "application/octet-stream"}}
}

func (s *Set) runInstallPackage(ctx context.Context, p Request, in *Inputs) (interaction.Response, error) {
	if err := s.CheckAllowed(ctx, access.Admin, "", ""); err != nil {
		return interaction.Response{}, err
	}
	if len(p.Body) == 0 {
		return interaction.Response{}, outcome.New(outcome.CodeRequired, "the request has no body; expected a FHIR package as a .tgz (Content-Type: application/gzip)")
	}
	dryRun, strict := in.True("dry-run"), in.True("strict")

	// 1. The archive.
	a, err := definitions.ReadArchive(p.Body, in.Text("integrity"))
	if err != nil {
		return interaction.Response{}, outcome.Invalid("the package cannot be installed: %v", err)
	}

	// 2. Each definition for itself.
	got, err := s.packageReader().Read(ctx, a, strict)
	if err != nil {
		return interaction.Response{}, err
	}
	items := make([]*packageItem, len(got.Accepted))
	for i, d := range got.Accepted {
		items[i] = &packageItem{file: d.File, resource: d.Resource}
	}

	// 3. All together.
	err = s.Store.InTx(ctx, func(tx *store.Tx) error {
		if err := tx.Lock(ctx, installLock); err != nil {
			return err
		}
		if err := s.planItems(ctx, tx, items); err != nil {
			return err
		}
		if err := s.writeItems(ctx, tx, items); err != nil {
			return err
		}
		if dryRun {
			return errDryRun
		}
		return tx.PutPackage(ctx, store.InstalledPackage{Name: a.Name, Version: a.Version, Integrity: a.Integrity, Installed: s.Now()}, brought(items))
	})
	if err := s.packagesWritten(ctx, err); err != nil {
		return interaction.Response{}, err
	}
	return parametersResponse(http.StatusOK, reportPackage(a, got, items, dryRun))
}

// packagesWritten makes this server notice the end of a transaction on packages before it answers. err is the result
// of the transaction.
func (s *Set) packagesWritten(ctx context.Context, err error) error {
	if errors.Is(err, errDryRun) {
		return nil
	}
	if err != nil {
		return err
	}
	return s.Store.Indexer().Refresh(ctx)
}

// packageItem is a definition of a package on its way into the store.
type packageItem struct {
	file     *definitions.File
	resource fhir.Resource
	action   string // create, update, unchanged
	id       string
	version  int // that is current, 0 for none
	w        *store.Write
}

// packageReader judges packages by the definitions of this server.
func (s *Set) packageReader() fhirpackage.Reader {
	return fhirpackage.Reader{
		Model: s.Model, Validate: s.Check,
		Parameter: s.Parameters.Check, Warnings: s.Parameters.Warnings, Restates: s.Parameters.Restates,
		Used: func(typ, code string) (string, bool) {
			at := s.Parameters.Current()
			p, ok := at.Compiled(typ, code)
			if !ok {
				p, ok = at.Lookup(typ, code)
			}
			if !ok {
				return "", false
			}
			return p.URL, true
		},
	}
}

// brought are the resources that the package has made or found.
func brought(items []*packageItem) []store.InstalledResource {
	out := make([]store.InstalledResource, len(items))
	for i, it := range items {
		out[i] = store.InstalledResource{ResourceType: it.file.Type, ID: it.id, VersionID: it.version}
		if it.w != nil {
			out[i].VersionID = it.w.Result.VersionID
		}
	}
	return out
}

// reportPackage returns the Parameters of the answer: the changes made, or to be made.
func reportPackage(a *definitions.Archive, c *fhirpackage.Content, items []*packageItem, dryRun bool) []parameters.Parameter {
	out := []parameters.Parameter{
		parameters.String("name", a.Name), parameters.String("version", a.Version),
		parameters.String("integrity", a.Integrity), parameters.Boolean("dryRun", dryRun),
	}
	counts := map[string]int{"refused": len(c.Refused), "existing": len(c.Existing)}
	for _, it := range items {
		counts[it.action]++
	}
	for _, action := range []string{"create", "update", "unchanged", "refused", "existing"} {
		out = append(out, parameters.Integer(action, counts[action]))
	}
	for _, i := range c.Issues[:min(len(c.Issues), fhirpackage.MaxIssues)] {
		parts := []parameters.Parameter{parameters.String("file", i.File), parameters.Code("severity", string(i.Severity))}
		if i.Expression != "" {
			parts = append(parts, parameters.String("expression", i.Expression))
		}
		out = append(out, parameters.Parts("issue", append(parts, parameters.String("diagnostics", i.Diagnostics))...))
	}
	for _, d := range c.Conflicts {
		out = append(out, parameters.Parts("conflict", parameters.String("code", d.Code), parameters.URI("used", d.Used), parameters.URI("hidden", d.Hidden)))
	}
	for _, it := range items {
		out = append(out, reportItem(it.action, it.file, it.file.Type+"/"+it.id))
	}
	for _, f := range c.Refused {
		out = append(out, reportItem("refused", f, ""))
	}
	for _, f := range c.Existing {
		item := reportItem("existing", f, "")
		item.Part = append(item.Part, parameters.String("reason", "already part of R4"))
		out = append(out, item)
	}
	return out
}

func reportItem(action string, f *definitions.File, reference string) parameters.Parameter {
	parts := []parameters.Parameter{parameters.Code("action", action), parameters.URI("url", f.URL)}
	if f.Version != "" {
		parts = append(parts, parameters.String("version", f.Version))
	}
	if reference != "" {
		parts = append(parts, parameters.Reference("reference", reference))
	}
	return parameters.Parts("resource", parts...)
}

// planItems decides what becomes of each item, by its URL.
func (s *Set) planItems(ctx context.Context, tx *store.Tx, items []*packageItem) error {
	byType := make(map[string][]*packageItem)
	for _, it := range items {
		byType[it.file.Type] = append(byType[it.file.Type], it)
	}
	for _, typ := range slices.Sorted(maps.Keys(byType)) {
		var urls, ids []string
		versions := make(map[string]int) // of a URL in the package
		for _, it := range byType[typ] {
			urls = append(urls, it.file.URL)
			versions[it.file.URL]++
		}
		current, err := tx.ByCanonical(ctx, typ, urls)
		if err != nil {
			return err
		}
		stored := make(map[string][]fhir.Version)
		version := make(map[string]string)
		for _, v := range current {
			var head struct{ URL, Version string }
			if err := json.Unmarshal(v.Body, &head); err != nil {
				return fmt.Errorf("%s/%s: %w", typ, v.ID, err)
			}
			stored[head.URL] = append(stored[head.URL], v)
			version[v.ID] = head.Version
		}
		for _, it := range byType[typ] {
			it.action, it.id, it.version, it.w = "create", it.file.ID, 0, nil
			// Of several with the URL, the one with the same business version.
			list := stored[it.file.URL]
			same := slices.IndexFunc(list, func(v fhir.Version) bool { return version[v.ID] == it.file.Version })
			if same < 0 && len(list) > 0 && versions[it.file.URL] == 1 {
				same = 0
			}
			if same >= 0 {
				if err := it.compare(list[same]); err != nil {
					return err
				}
				continue
			}
			if !fhir.ValidID(it.id) {
				it.id = s.NewID()
			}
			ids = append(ids, it.id)
		}
		taken, err := tx.TakenCanonicals(ctx, typ, ids)
		if err != nil {
			return err
		}
		for _, it := range byType[typ] {
			if it.version == 0 && taken[it.id] {
				it.id = s.NewID()
			}
			taken[it.id] = true
		}
	}
	return nil
}

// compare decides between update and unchanged.
func (it *packageItem) compare(v fhir.Version) error {
	it.id, it.version, it.action = v.ID, v.VersionID, "update"
	body, err := fhir.Splice(it.resource.Header().Raw, nil)
	if err != nil {
		return err
	}
	if bytes.Equal(body.Render(nil, v.ID, v.VersionID, v.LastUpdated), v.Body) {
		it.action = "unchanged"
	}
	return nil
}

// writeItems writes new and changed items.
func (s *Set) writeItems(ctx context.Context, tx *store.Tx, items []*packageItem) error {
	var ws []*store.Write
	var of []*packageItem
	for _, it := range items {
		if it.action == "unchanged" {
			continue
		}
		it.w = &store.Write{Method: fhir.PUT, ResourceType: it.file.Type, ID: it.id, IfNoneMatch: it.version == 0}
		if it.version != 0 {
			it.w.IfMatch = []int{it.version}
		}
		if err := s.DraftWrite(it.w, it.resource, nil); err != nil {
			return inFile(it.file, err)
		}
		ws, of = append(ws, it.w), append(of, it)
	}
	if len(ws) == 0 {
		return nil
	}
	err := tx.Write(ctx, ws)
	if w, ok := errors.AsType[*store.WriteError](err); ok {
		return inFile(of[w.Index].file, w.Err)
	}
	return err
}

// inFile names the file that an error is about.
func inFile(f *definitions.File, err error) error {
	e, ok := outcome.From(err)
	if !ok {
		return fmt.Errorf("%s: %w", f.Name, err)
	}
	n := *e
	n.Issues = slices.Clone(e.Issues)
	for i := range n.Issues {
		n.Issues[i].Diagnostics = f.Name + ": " + n.Issues[i].Diagnostics
	}
	return &n
}
