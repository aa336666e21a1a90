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
	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/store"
)

// installLock is what one installation of a package waits for the other by.
const installLock = 0x6b706b67 // "kpkg"

// errDryRun undoes a transaction that was only to show what it would do.
var errDryRun = errors.New("interaction: dry run")

// InstallPackage stores the definitions of a FHIR package (a .tgz, as registries
// have it) as resources, in one transaction: SearchParameters, profiles, value
// sets and what else has a canonical URL. What is stored with that URL already is
// updated where it differs; something new keeps its id where that is free.
//
// The value `dry-run=true` shows what would change, and changes nothing;
// `integrity=sha512-…` is the digest that the archive must have. It fails with
// invalid, 400, when the archive is no package, is damaged or tries to lead out of
// itself, and with invalid, 422, when a definition is not valid: nothing is stored
// then. The answer is a Parameters resource with a part for each definition.
// Spec: https://hl7.org/fhir/packages.html.
func (s *Set) InstallPackage(ctx context.Context, p Request) (interaction.Response, error) {
	if err := s.May(ctx, access.Admin, "", ""); err != nil {
		return interaction.Response{}, err
	}
	dryRun := false
	switch v := p.Values.Get("dry-run"); v {
	case "", "false":
	case "true":
		dryRun = true
	default:
		return interaction.Response{}, outcome.Invalid(`parameter dry-run is %q: expected "true" or "false"`, clip(v))
	}
	if len(p.Body) == 0 {
		return interaction.Response{}, outcome.New(outcome.CodeRequired, "the request has no body; expected a FHIR package as a .tgz (Content-Type: application/gzip)")
	}

	// 1. The archive.
	a, err := definitions.ReadArchive(p.Body, p.Values.Get("integrity"))
	if err != nil {
		return interaction.Response{}, outcome.Invalid("the package cannot be installed: %v", err)
	}

	// 2. Each definition for itself.
	items, err := s.packageItems(ctx, a)
	if err != nil {
		return interaction.Response{}, err
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
		return nil
	})
	if err != nil && !errors.Is(err, errDryRun) {
		return interaction.Response{}, err
	}
	return interaction.Response{Status: http.StatusOK, Body: packageAnswer(a, items, dryRun)}, nil
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

// packageItems reads and judges the definitions. All that is wrong is told.
func (s *Set) packageItems(ctx context.Context, a *definitions.Archive) ([]*packageItem, error) {
	const most = 100
	items := make([]*packageItem, 0, len(a.Files))
	wrong := &outcome.Error{Status: http.StatusUnprocessableEntity}
	for i := range a.Files {
		f := &a.Files[i]
		r, err := fhir.Decode(s.Model, f.Body)
		if err == nil {
			err = s.Check(ctx, r)
		}
		if err == nil {
			items = append(items, &packageItem{file: f, resource: r})
			continue
		}
		e, ok := outcome.From(err)
		if !ok {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
		for _, issue := range e.Issues {
			if issue.Severity == outcome.Failure || issue.Severity == outcome.Fatal {
				issue.Diagnostics = f.Name + ": " + issue.Diagnostics
				wrong.Issues = append(wrong.Issues, issue)
			}
		}
		if len(wrong.Issues) >= most {
			break
		}
	}
	if len(wrong.Issues) > 0 {
		return nil, wrong
	}
	return items, nil
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
		taken, err := tx.Taken(ctx, typ, ids)
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

// writeItems writes what is new or differs.
func (s *Set) writeItems(ctx context.Context, tx *store.Tx, items []*packageItem) error {
	var ws []*store.Write
	var of []*packageItem
	for _, it := range items {
		if it.action == "unchanged" {
			continue
		}
		it.w = &store.Write{Method: fhir.PUT, ResourceType: it.file.Type, ID: it.id, IfMatch: it.version, IfNoneMatch: it.version == 0}
		if err := s.Draft(it.w, it.resource, nil); err != nil {
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

// packageAnswer tells what was done, or would be.
func packageAnswer(a *definitions.Archive, items []*packageItem, dryRun bool) []byte {
	out := parameters{}
	out.add("name", "valueString", a.Name)
	out.add("version", "valueString", a.Version)
	out.add("integrity", "valueString", a.Integrity)
	out.add("dryRun", "valueBoolean", dryRun)
	counts := map[string]int{}
	for _, it := range items {
		counts[it.action]++
	}
	for _, action := range []string{"create", "update", "unchanged"} {
		out.add(action, "valueInteger", counts[action])
	}
	for _, it := range items {
		r := parameters{}
		r.add("action", "valueCode", it.action)
		r.add("url", "valueUri", it.file.URL)
		if it.file.Version != "" {
			r.add("version", "valueString", it.file.Version)
		}
		r.add("reference", "valueReference", map[string]string{"reference": it.file.Type + "/" + it.id})
		out.part("resource", r)
	}
	return out.json()
}

// parameters are the parameters of a Parameters resource made for an answer.
type parameters []map[string]any

func (p *parameters) add(name, property string, value any) {
	*p = append(*p, map[string]any{"name": name, property: value})
}

func (p *parameters) part(name string, parts parameters) {
	*p = append(*p, map[string]any{"name": name, "part": parts})
}

func (p parameters) json() []byte {
	b, err := json.Marshal(struct {
		ResourceType string     `json:"resourceType"`
		Parameter    parameters `json:"parameter,omitempty"`
	}{"Parameters", p})
	if err != nil {
		panic(err) // strings, numbers and maps of them
	}
	return b
}
