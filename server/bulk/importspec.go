package bulk

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"kiln/server/access"
	"kiln/server/interaction"
	"kiln/server/jobs"
	"kiln/server/outcome"
	"kiln/server/rest"
	"kiln/server/smart"
	"kiln/server/web"
)

// importSpec is the content of a kick-off.
type importSpec struct {
	Source string        `json:"source,omitempty"` // meta.source of resources without one
	Inputs []importInput `json:"inputs"`
	// Failure is why an upload could not be read; "" where it could.
	Failure string `json:"failure,omitempty"`
	// Warnings are lines of errors: parameters that handling=lenient has ignored.
	Warnings []json.RawMessage `json:"warnings,omitempty"`
}

type importInput struct {
	Type string `json:"type,omitempty"` // of every line; "" is any
	URL  string `json:"url,omitempty"`  // "" for an upload
}

const (
	maxInputs   = 100_000
	maxManifest = 16 << 20 // bytes of the body of a kick-off
	maxSource   = 4096     // bytes of inputSource and of a URL
)

// manifestFields are the fields of a manifest, by the object that they are in.
var manifestFields = map[string][]string{"": {"input", "inputFormat", "inputSource", "storageDetail"}, "storageDetail": {"type"}, "input": {"type", "url"}}

// importReader reads the kick-off of an import.
type importReader struct {
	s        *Service
	lenient  bool
	spec     importSpec
	settings Settings

	format  string
	storage string
}

// importJob checks a kick-off and makes its job. An upload is stored before importJob returns.
func (s *Service) importJob(ctx context.Context, x *web.Exchange, r *http.Request, k rest.KickOff) (*jobs.Job, []jobs.Part, error) {
	if s.ImportEnabled != nil && !s.ImportEnabled(ctx) {
		return nil, nil, outcome.NotImplemented("$import is switched off (bulk.import.enabled)")
	}
	if r.Method != http.MethodPost {
		x.Header().Set("Allow", http.MethodPost)
		return nil, nil, outcome.MethodNotAllowed("$import is called by POST")
	}
	if err := s.CheckAllowed(ctx, access.Operation, "", ""); err != nil {
		return nil, nil, err
	}
	p := &importReader{s: s, lenient: k.Lenient, settings: s.Settings()}
	typ, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if bare := r.Header.Get("Content-Type"); err != nil && isNDJSON(bare) {
		typ = bare
	}
	switch {
	case isNDJSON(typ):
		return p.upload(ctx, x, r)
	case typ == "application/json" || typ == "application/fhir+json":
		return p.manifest(ctx, r, typ)
	}
	return nil, nil, outcome.UnsupportedMediaType("the body of $import is application/json, application/fhir+json or application/fhir+ndjson, not %q", outcome.Clip(r.Header.Get("Content-Type")))
}

// isNDJSON reports whether a format is NDJSON, by its media type or a short name.
func isNDJSON(format string) bool {
	switch format {
	case ndjson, "application/ndjson", "application/x-ndjson", "ndjson":
		return true
	}
	return false
}

// ignore is err, unless the client wants unknown parameters to be ignored.
func (p *importReader) ignore(err error) error {
	warnings, err := lenientWarnings(p.lenient, err)
	p.spec.Warnings = append(p.spec.Warnings, warnings...)
	return err
}

// lenientWarnings makes the issues of err warnings, where handling is lenient; else it returns err.
func lenientWarnings(lenient bool, err error) ([]json.RawMessage, error) {
	e, ok := outcome.From(err)
	if !lenient || !ok {
		return nil, err
	}
	var out []json.RawMessage
	for _, issue := range e.Issues {
		issue.Severity = outcome.Warning
		out = append(out, outcome.JSON([]outcome.Issue{issue}))
	}
	return out, nil
}

func (p *importReader) unknown(name, in string) error {
	where := "$import"
	if in != "" {
		where = in + " of $import"
	}
	return p.ignore(outcome.RefusedParameter("%s has no parameter %q%s", where, outcome.Clip(name), outcome.DidYouMean(name, manifestFields[in])))
}

// query reads the parameters of the URL, of those that are known.
func (p *importReader) query(r *http.Request, known ...string) (url.Values, error) {
	values, err := interaction.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if name != "_format" && name != "_pretty" && !slices.Contains(known, name) {
			if err := p.ignore(outcome.RefusedParameter("the URL of $import has no parameter %q%s", outcome.Clip(name), outcome.DidYouMean(name, known))); err != nil {
				return nil, err
			}
		}
	}
	return values, nil
}

// manifest reads a manifest, as JSON or as Parameters.
func (p *importReader) manifest(ctx context.Context, r *http.Request, typ string) (*jobs.Job, []jobs.Part, error) {
	if _, err := p.query(r); err != nil {
		return nil, nil, err
	}
	body, err := readBody(r, maxManifest)
	if err != nil {
		return nil, nil, err
	}
	if err := p.readManifest(body, typ == "application/fhir+json"); err != nil {
		return nil, nil, err
	}
	if err := p.checkRights(ctx); err != nil {
		return nil, nil, err
	}
	if err := p.checkManifest(); err != nil {
		return nil, nil, err
	}
	stored, err := json.Marshal(p.spec)
	if err != nil {
		return nil, nil, err
	}
	parts := make([]jobs.Part, 0, len(p.spec.Inputs)+1)
	for i := range p.spec.Inputs {
		parts = append(parts, jobs.Part{Spec: importPart{Do: fetchInput, Input: i}})
	}
	parts = append(parts, jobs.Part{Stage: 1, Spec: importPart{Do: reportImport}})
	return &jobs.Job{Type: "import", Spec: stored, Reason: fmt.Sprintf("an import of %d inputs", len(p.spec.Inputs))}, parts, nil
}

// field is one parameter of a manifest in either form.
type field struct {
	name  string
	text  string // of a string
	isSet bool   // text is one
	parts []field
}

// readManifest reads both forms of a manifest.
func (p *importReader) readManifest(body []byte, parameters bool) error {
	var fields []field
	var err error
	if parameters || isParameters(body) {
		fields, err = readParameters(body)
	} else {
		fields, err = readFields(body)
	}
	if err != nil {
		return err
	}
	given := make(map[string]bool)
	for _, f := range fields {
		if f.name != "input" && given[f.name] {
			return outcome.Invalid("%s is given more than once", outcome.Clip(f.name))
		}
		given[f.name] = true
		switch f.name {
		case "inputFormat":
			p.format, err = f.value("")
		case "inputSource":
			p.spec.Source, err = f.value("")
		case "storageDetail":
			err = p.readParts(f, map[string]*string{"type": &p.storage})
		case "input":
			var in importInput
			err = p.readParts(f, map[string]*string{"type": &in.Type, "url": &in.URL})
			p.spec.Inputs = append(p.spec.Inputs, in)
		default:
			err = p.unknown(f.name, "")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func isParameters(body []byte) bool {
	var head struct {
		ResourceType string `json:"resourceType"`
	}
	return json.Unmarshal(body, &head) == nil && head.ResourceType == "Parameters"
}

func (f field) value(in string) (string, error) {
	name := f.name
	if in != "" {
		name = in + "." + name
	}
	if !f.isSet {
		return "", outcome.Invalid("%s is no string", outcome.Clip(name))
	}
	return f.text, nil
}

func (p *importReader) readParts(f field, into map[string]*string) error {
	if f.isSet {
		return outcome.Invalid("%s is a string: expected %s", f.name, strings.Join(manifestFields[f.name], " and "))
	}
	for _, part := range f.parts {
		at := into[part.name]
		if at == nil {
			if err := p.unknown(part.name, f.name); err != nil {
				return err
			}
			continue
		}
		var err error
		if *at, err = part.value(f.name); err != nil {
			return err
		}
	}
	return nil
}

// readFields reads the manifest of the SMART Bulk Data Import Proposal.
func readFields(body []byte) ([]field, error) {
	var top map[string]json.RawMessage
	if err := json.Unmarshal(body, &top); err != nil || top == nil {
		return nil, outcome.New(outcome.CodeStructure, "the body of $import is no JSON object")
	}
	var out []field
	for _, name := range slices.Sorted(maps.Keys(top)) {
		list := []json.RawMessage{top[name]}
		if name == "input" {
			if err := json.Unmarshal(top[name], &list); err != nil {
				return nil, outcome.Invalid("input is no list: expected [{\"type\", \"url\"}]")
			}
		}
		for _, text := range list {
			f := field{name: name}
			var object map[string]json.RawMessage
			switch {
			case json.Unmarshal(text, &f.text) == nil && !bytes.Equal(bytes.TrimSpace(text), []byte("null")):
				f.isSet = true
			case json.Unmarshal(text, &object) == nil && object != nil:
				for _, key := range slices.Sorted(maps.Keys(object)) {
					part := field{name: key}
					part.isSet = json.Unmarshal(object[key], &part.text) == nil && !bytes.Equal(object[key], []byte("null"))
					f.parts = append(f.parts, part)
				}
			}
			out = append(out, f)
		}
	}
	return out, nil
}

// readParameters reads the same as a Parameters resource.
func readParameters(body []byte) ([]field, error) {
	var in struct {
		ResourceType string                       `json:"resourceType"`
		Parameter    []map[string]json.RawMessage `json:"parameter"`
	}
	if err := json.Unmarshal(body, &in); err != nil || in.ResourceType != "Parameters" {
		return nil, outcome.New(outcome.CodeStructure, "the body of $import is not a Parameters resource")
	}
	return readParts(in.Parameter)
}

func readParts(list []map[string]json.RawMessage) ([]field, error) {
	var out []field
	for _, object := range list {
		var f field
		if json.Unmarshal(object["name"], &f.name) != nil || f.name == "" {
			return nil, outcome.New(outcome.CodeStructure, "a parameter of $import has no name")
		}
		for key, value := range object {
			if strings.HasPrefix(key, "value") {
				f.isSet = json.Unmarshal(value, &f.text) == nil
			}
		}
		if text, ok := object["part"]; ok {
			var parts []map[string]json.RawMessage
			if err := json.Unmarshal(text, &parts); err != nil {
				return nil, outcome.New(outcome.CodeStructure, "part of %s is no list", outcome.Clip(f.name))
			}
			var err error
			if f.parts, err = readParts(parts); err != nil {
				return nil, err
			}
		}
		out = append(out, f)
	}
	return out, nil
}

// storageSchemes are the URL schemes of each type of storage. The proposal's default is https.
var storageSchemes = map[string][]string{"https": {"https", "http"}, "file": {"file"}, "aws-s3": {"s3"}}

// checkManifest fails where a manifest lacks something, or where the settings exclude a URL.
func (p *importReader) checkManifest() error {
	switch {
	case p.format == "":
		return outcome.Invalid("inputFormat is missing: expected %s", ndjson)
	case !isNDJSON(p.format):
		return outcome.RefusedParameter("inputFormat is %q: expected %s", outcome.Clip(p.format), ndjson)
	case p.spec.Source == "":
		return outcome.Invalid("inputSource is missing: expected a URI that names the origin of the data")
	case len(p.spec.Inputs) == 0:
		return outcome.Invalid("input is missing: expected at least one")
	case len(p.spec.Inputs) > maxInputs:
		return outcome.Invalid("there are %d inputs: expected at most %d", len(p.spec.Inputs), maxInputs)
	}
	if err := checkSource(p.spec.Source); err != nil {
		return err
	}
	if p.storage == "" {
		p.storage = "https"
	}
	schemes, ok := storageSchemes[p.storage]
	if !ok {
		return outcome.RefusedParameter("storageDetail.type is %q: expected https, file or aws-s3", outcome.Clip(p.storage))
	}
	seen := make(map[string]bool, len(p.spec.Inputs))
	for _, in := range p.spec.Inputs {
		switch {
		case in.URL == "":
			return outcome.Invalid("an input has no url")
		case seen[in.URL]:
			return outcome.Invalid("the url %s is given more than once", outcome.Clip(in.URL))
		}
		seen[in.URL] = true
		u, err := url.Parse(in.URL)
		switch {
		case err != nil || u.Scheme == "" || len(in.URL) > maxSource:
			return outcome.Invalid("the url %q is no absolute URL", outcome.Clip(in.URL))
		case !slices.Contains(schemes, u.Scheme):
			return outcome.Invalid("the url %s does not fit the storage type %s: expected %s:", outcome.Clip(in.URL), p.storage, schemes[0])
		case u.User != nil:
			return outcome.Invalid("the url of an input has a user or a password in it")
		}
		if err := p.settings.Import.check(u); err != nil {
			return outcome.Invalid("the url %s: %v", outcome.Clip(in.URL), err)
		}
	}
	return nil
}

// checkSource fails for an inputSource that cannot be meta.source.
func checkSource(source string) error {
	if len(source) > maxSource || strings.ContainsFunc(source, func(r rune) bool { return r <= ' ' }) {
		return outcome.Invalid("inputSource is %q: expected a URI without white space", outcome.Clip(source))
	}
	return nil
}

// check fails for a URL that the settings exclude.
func (c ImportSettings) check(u *url.URL) error {
	switch u.Scheme {
	case "file":
		if u.Host != "" && u.Host != "localhost" || !strings.HasPrefix(u.Path, "/") || u.Opaque != "" {
			return errors.New("expected file:/// and the path of a file of this machine")
		}
	case "s3":
		if !c.S3 {
			return errors.New("bulk.s3.endpoint is not set")
		}
	default:
		if err := c.Outbound.Check(u); err != nil {
			return err
		}
	}
	if len(c.Sources) == 0 {
		if u.Scheme == "file" || u.Scheme == "s3" {
			return fmt.Errorf("%s: needs a prefix in bulk.import.sources", u.Scheme)
		}
		return nil
	}
	if !slices.ContainsFunc(c.Sources, func(prefix string) bool { return below(u, prefix) }) {
		return errors.New("it begins with none of bulk.import.sources")
	}
	return nil
}

// below reports whether a URL begins with a prefix: it has the same scheme, host and port, no dot
// segments, and its path begins with the path of the prefix.
func below(u *url.URL, prefix string) bool {
	p, err := url.Parse(prefix)
	if err != nil || p.Scheme != u.Scheme || !sameHost(p, u) {
		return false
	}
	own := u.Path
	if own == "" {
		own = "/"
	}
	clean := path.Clean(own)
	if strings.HasSuffix(own, "/") && clean != "/" {
		clean += "/"
	}
	return clean == own && !strings.ContainsAny(u.EscapedPath(), `\`) && !strings.Contains(strings.ToLower(u.EscapedPath()), "%2e") &&
		!strings.Contains(strings.ToLower(u.EscapedPath()), "%2f") && strings.HasPrefix(own, p.Path)
}

func sameHost(a, b *url.URL) bool {
	port := func(u *url.URL) string {
		if u.Port() != "" {
			return u.Port()
		}
		return map[string]string{"https": "443", "http": "80"}[u.Scheme]
	}
	local := func(h string) string {
		if a.Scheme == "file" && h == "localhost" {
			return ""
		}
		return strings.ToLower(h)
	}
	return local(a.Hostname()) == local(b.Hostname()) && port(a) == port(b)
}

// checkRights fails where the client may not create and update the types of the inputs.
func (p *importReader) checkRights(ctx context.Context) error {
	rights, err := p.s.Access.Rights(ctx)
	reg := p.s.Parameters.Current()
	checked := make(map[string]bool)
	for _, in := range p.spec.Inputs {
		if in.Type != "" && p.s.Model.Resources[in.Type] == nil {
			return outcome.Invalid("the input type %q is no resource type%s", outcome.Clip(in.Type), reg.NearestType(in.Type))
		}
		if err != nil || rights == nil || checked[in.Type] {
			continue
		}
		checked[in.Type] = true
		if err := p.mayWrite(rights, in.Type); err != nil {
			return err
		}
	}
	if err != nil || rights == nil {
		return err
	}
	for _, in := range p.spec.Inputs {
		if strings.HasPrefix(strings.ToLower(in.URL), "file:") {
			return rights.MayAdmin()
		}
	}
	return nil
}

// mayWrite fails without rights to create and update a type; for "" some type is enough.
func (p *importReader) mayWrite(rights *access.Rights, typ string) error {
	if typ != "" {
		if err := rights.Check(smart.Create, typ); err != nil {
			return err
		}
		return rights.Check(smart.Update, typ)
	}
	for _, t := range slices.Sorted(maps.Keys(p.s.Model.Resources)) {
		if rights.Check(smart.Create, t) == nil && rights.Check(smart.Update, t) == nil {
			return nil
		}
	}
	return access.Insufficient("system/*.cu")
}
