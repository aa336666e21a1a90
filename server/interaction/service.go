package interaction

import (
	"context"
	"log/slog"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"kiln/gen/r4"
	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/store"
	"kiln/server/terminology"
)

// Service carries out interactions. Its fields are set once, before first use.
type Service struct {
	Model *fhir.Model
	Store *store.Store
	// Parameters are the search parameters in force.
	Parameters Parameters
	Now        func() time.Time
	NewID      func() string // a new logical id

	// Settings are what can change at run time; nil is their zero value.
	Settings func() *Settings
	// BaseURLs are the service's own, without a trailing slash: absolute
	// references below them are local.
	BaseURLs []string
	// CheckContent refuses a resource that the service itself could not carry out, such as a ViewDefinition whose
	// paths do not compile, whether it is valid or not and whether writes are validated or not; may be nil.
	CheckContent func(r fhir.Resource) error
	// Validator checks resources before a write; nil accepts everything that can be
	// decoded.
	Validator Validator
	// Terminology answers operations and search modifiers about codes; nil refuses
	// them.
	Terminology *terminology.Service
	// Definition returns a Definition by its id, Resolve by its canonical URL; nil has
	// none.
	Definition, Resolve func(typ, idOrURL string) (d Definition, ok bool, err error)
	// BuiltIn calls each with every definition of a type that the server is built with,
	// until each fails; nil has none. The bytes are valid until each returns.
	BuiltIn func(typ string, each func(id string, body []byte) error) error
	// Operations returns the $operations that are served; nil serves none.
	Operations func() Operations
	// StoredProfiles are the canonicals of the profiles that are stored, by resource
	// type, and a version that differs when they do; nil has none.
	StoredProfiles func(ctx context.Context) (byType map[string][]string, version int64, err error)
	Facts          Facts
	// Access decides on the rights of a principal; nil serves only the open one.
	Access *access.Decider
	// LogRead is called for every version that is read by itself; nil where that is no
	// event.
	LogRead func(ctx context.Context, v fhir.Version) error
	// Masks take out of versions of a resource type what not everyone may read who may
	// read the version. They change the elements of the slice, not the bytes of a body.
	Masks map[string]Mask
	// Searched is told of every search that was run, failed ones too: how long it took,
	// and how many matches and includes it read; nil is told nothing.
	Searched func(ctx context.Context, q *search.Query, took time.Duration, rows int, err error)
	// Settle makes the AuditEvents of earlier writes; nil has nothing to make.
	Settle func(ctx context.Context) error
	Logger *slog.Logger // nil discards

	metadata       metadata
	builtInIndexes builtInIndexes
}

// Parameters are the search parameters in force, and the index that follows them.
type Parameters interface {
	Current() *search.Registry
	// Index returns what r leaves in the search index under the id it is stored
	// with; Recycle takes the index back for reuse.
	Index(id string, r fhir.Resource) (*fhir.Index, error)
	Recycle(x *fhir.Index)
	// Check fails if a SearchParameter cannot be stored.
	Check(p *r4.SearchParameter) error
	// Warnings returns warnings about a SearchParameter that can be stored.
	Warnings(p *r4.SearchParameter) []outcome.Issue
	// Restates reports whether R4 has a search parameter of the same code, type and
	// values for each resource type of p.
	Restates(p *r4.SearchParameter) bool
	// Wake starts work on a new reindex job at once.
	Wake()
}

// Settings are the parts of the configuration that can change while the service runs.
type Settings struct {
	DefaultCount, MaxCount int                            // of a page; 0 means 20 and 1,000
	RefuseUpdateCreate     bool                           // PUT to an unknown id is 405 instead of a create
	RefuseSystemHistory    bool                           // history of everything at once is not served
	Explain                func(ctx context.Context) bool // search may be asked to explain itself; nil is never
	SearchTimeout          time.Duration                  // 0 means none
	StoredSearchAge        time.Duration                  // how long a stored search is good after its last use; 0 means an hour
	VersionConflictStatus  int                            // 409 or 412; 0 is 409
}

var noSettings Settings

// now returns the settings in force.
func (s *Service) now() *Settings {
	if s.Settings == nil {
		return &noSettings
	}
	return s.Settings()
}

// SearchTimeout is how long a search may take; 0 is without bound.
func (s *Service) SearchTimeout() time.Duration { return s.now().SearchTimeout }

func (s *Service) logger() *slog.Logger {
	if s.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return s.Logger
}

// Facts are the contents of the capability statement beside the interactions.
type Facts struct {
	Version string // of the software
	Date    string // of the build or of the definitions, yyyy-mm-dd
	URL     string // base URL, "" when it depends on the request
	// Profiles are, for each resource type, the canonical URLs of its definition and of the
	// profiles on it.
	Profiles map[string][]string
	// OAuthURIs returns the endpoints of the authorization server by the names of
	// http://fhir-registry.smarthealthit.org/StructureDefinition/oauth-uris; nil
	// without authorization.
	OAuthURIs func() map[string]string
	// Export reports whether $export is served; nil says no.
	Export func() bool
	// Import reports whether $import is served; nil says no.
	Import func() bool
	// CORS reports whether pages of other origins may call; nil says no.
	CORS func() bool
	// Guides returns the canonicals of the requirements for servers and of the guides of packages; nil
	// has none.
	Guides func(ctx context.Context) (Guides, error)
	// Instantiates returns the canonicals that stand in CapabilityStatement.instantiates in place of all
	// others; nil and an empty list change nothing.
	Instantiates func() []string
	// Topics returns the canonicals of the topics that Subscriptions may name; nil without
	// notifications.
	Topics func(ctx context.Context) ([]string, error)
}

// Guides are the canonicals by which a CapabilityStatement names packages.
type Guides struct {
	Requirements []string // CapabilityStatements of kind requirements, for servers
	Guides       []string // ImplementationGuides
}

// UnknownType is the error of a resource type that there is not, not-supported, 404;
// it names the nearest.
func (s *Service) UnknownType(typ string) error {
	return outcome.NotSupported("there is no resource type %q in FHIR R4%s", outcome.Clip(typ), s.Parameters.Current().NearestType(typ))
}

// decode reads a body of the given resource type that is to be stored. Where its JSON
// is wrong in places, the errors of the rules are reported with them.
func (s *Service) decode(ctx context.Context, typ string, data []byte) (fhir.Resource, error) {
	if len(data) == 0 {
		return nil, outcome.New(outcome.CodeStructure, "the request has no body; expected a resource of type %s as JSON", typ)
	}
	in, err := fhir.Read(s.Model, data)
	if err != nil {
		return nil, err
	}
	if got := in.Resource.Type().Name; got != typ {
		return nil, outcome.Invalid("the body is a resource of type %s, the URL names %s", got, typ)
	}
	if len(in.Issues) > 0 {
		return nil, outcome.Unprocessable(append(in.Issues, s.ruleErrors(ctx, in)...))
	}
	return in.Resource, nil
}

// draftWrite fills in body and index of w from r, as it is to be stored.
func (s *Service) draftWrite(w *store.Write, r fhir.Resource, edits []fhir.Edit) error {
	body, err := fhir.Splice(r.Header().Raw, edits)
	if err != nil {
		return err
	}
	w.Body, w.Resource = body, r
	w.Index, err = s.Parameters.Index(w.ID, r)
	return err
}

// runWrite stores one draft. Its index goes back to the pool only when the store is
// surely done with it.
func (s *Service) runWrite(ctx context.Context, w *store.Write) error {
	if err := s.Store.Write(ctx, w); err != nil {
		return err
	}
	s.recycleIndex(w)
	return nil
}

// recycleIndex gives the index of a finished write back for reuse.
func (s *Service) recycleIndex(w *store.Write) {
	if w.Index != nil {
		s.Parameters.Recycle(w.Index)
		w.Index = nil
	}
}

// checkID refuses a logical id that FHIR does not allow.
// Spec: https://hl7.org/fhir/R4/datatypes.html#id.
func checkID(id string) error {
	if !fhir.ValidID(id) {
		return outcome.Invalid("%q is not an id: expected 1 to 64 letters, digits, - and .", outcome.Clip(id))
	}
	return nil
}

// checkBodyID refuses a body whose id is not the one it is to be stored under.
func checkBodyID(r fhir.Resource, id string) error {
	switch got := r.Header().ID.Text; got {
	case id:
		return nil
	case "":
		return outcome.Invalid("the body has no id; expected %q, the id of the URL", id).At(r.Type().Name + ".id")
	default:
		return outcome.Invalid("the body has the id %q, the URL names %q", outcome.Clip(got), id).At(r.Type().Name + ".id")
	}
}

// ParseQuery reads a query string: of a URL, of a form, of a bundle entry's url, of
// If-None-Exist or of a conditional reference. A semicolon is data, RFC 3986 §3.4. A NUL
// and invalid UTF-8 are refused.
func ParseQuery(query string) (url.Values, error) {
	v, err := url.ParseQuery(strings.ReplaceAll(query, ";", "%3B"))
	if err != nil {
		return nil, outcome.Invalid("the query string %q cannot be read: %v", outcome.Clip(query), err)
	}
	for name, values := range v {
		for _, value := range append(values, name) {
			if strings.IndexByte(value, 0) >= 0 || !utf8.ValidString(value) {
				return nil, outcome.Invalid("parameter %q holds a NUL or bytes that are not UTF-8", outcome.Clip(strings.ToValidUTF8(name, "�")))
			}
		}
	}
	return v, nil
}
