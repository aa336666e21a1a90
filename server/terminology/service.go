package terminology

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"
	"github.com/maypok86/otter/v2/stats"

	"kiln/definitions"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/telemetry"
)

// Config is the configuration of a Service. The zero value has no definitions.
type Config struct {
	// Disabled makes every operation and search modifier fail with not-supported,
	// 501. Bindings are still checked.
	Disabled bool
	// Packages opens the definitions that the server was built with; it is called
	// once, at first use. nil is none.
	Packages func() (*definitions.Library, error)
	// Resources are those stored through REST; nil is none.
	Resources Resources
	// Server is asked about definitions that are not local; its zero value sends no requests.
	Server ServerConfig
	// Answers stores the answers of the server, and Sets large sets for searches, shared by all instances. nil caches
	// answers in memory only, and stores no sets.
	Answers Answers
	Sets    Sets
	Now     func() time.Time // nil is time.Now
	Logger  *slog.Logger     // nil discards
}

// Resources are the terminology resources that are stored through REST.
type Resources interface {
	// Canonicals returns the current resources of a type (CodeSystem, ValueSet,
	// ConceptMap) whose url is url, in any order.
	Canonicals(ctx context.Context, typ, url string) ([]fhir.Version, error)
	// ConceptMaps returns the current concept maps that map codes from a system, or,
	// when to is set, to it.
	ConceptMaps(ctx context.Context, system string, to bool) ([]fhir.Version, error)
	// Supplements returns the current code systems that supplement a system; for
	// system "" some that supplement any, none where there are none.
	Supplements(ctx context.Context, system string) ([]fhir.Version, error)
	// TerminologyStamp returns a text that is another one after every create,
	// update and delete of a CodeSystem, ValueSet or ConceptMap, by any instance. stored
	// reports whether there has ever been one.
	TerminologyStamp(ctx context.Context) (stamp string, stored bool, err error)
}

// Service answers questions about codes. It is safe for concurrent use.
type Service struct {
	config   Config
	packages func() (*definitions.Library, error)
	// implied maps the value set that a package's code system names as all of its codes to that code system. supplements
	// maps a code system to the URLs of its supplements.
	implied     func() (map[string]string, error)
	supplements func() (map[string][]string, error)
	external    atomic.Pointer[externalServer] // nil when there is none
	disabled    atomic.Bool

	current   atomic.Pointer[snapshot]
	snapshots atomic.Uint64
	questions atomic.Uint64 // for the stamp
	forgotten atomic.Uint64 // calls of Forget

	parsed     *otter.Cache[key, sized]
	large      *otter.Cache[key, sized] // parsed resources with more than largeSize of JSON
	reading    sync.Mutex               // held while one of them is parsed
	expansions *otter.Cache[key, *expansion]
	sets       *otter.Cache[setKey, *set]
}

// key identifies derived data of a snapshot; number 0 is the data of the packages, which never changes.
type key struct {
	snapshot uint64
	name     string
}

// sized is a parsed resource with its size in memory, in bytes, roughly.
type sized struct {
	value any
	size  int
	large bool // it is in Service.large
}

const (
	parsedBytes = 8 << 20 // of parsed resources
	// A stored CodeSystem of 50,000 codes has 10 MB of JSON and takes half a second to
	// parse. Such ones are kept as long as they are used.
	largeSize  = 1 << 20
	largeBytes = 96 << 20
	largeKept  = 10 * time.Minute // after the last use
)

// New returns a Service. It reads nothing yet.
func New(c Config) (*Service, error) {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Packages == nil {
		c.Packages = func() (*definitions.Library, error) { return new(definitions.Library), nil }
	}
	s := &Service{config: c, packages: sync.OnceValues(c.Packages)}
	s.implied, s.supplements = sync.OnceValues(s.readImplied), sync.OnceValues(s.readSupplements)
	s.parsed = otter.Must(&otter.Options[key, sized]{
		StatsRecorder: stats.NewCounter(),
		MaximumWeight: parsedBytes,
		Weigher:       func(_ key, v sized) uint32 { return uint32(min(v.size, parsedBytes)) },
	})
	s.large = otter.Must(&otter.Options[key, sized]{
		StatsRecorder:    stats.NewCounter(),
		MaximumWeight:    largeBytes,
		Weigher:          func(_ key, v sized) uint32 { return uint32(min(v.size, largeBytes)) },
		ExpiryCalculator: otter.ExpiryAccessing[key, sized](largeKept),
	})
	s.expansions = newLocalExpansions()
	s.sets = otter.Must(&otter.Options[setKey, *set]{
		StatsRecorder: stats.NewCounter(),
		MaximumWeight: setBytes,
		Weigher:       func(_ setKey, v *set) uint32 { return uint32(min(300+8*len(v.codes.Values), setBytes)) },
	})
	if err := s.Configure(c.Disabled, c.Server); err != nil {
		return nil, err
	}
	return s, nil
}

// Configure switches the service on or off, and sets the terminology server from now on. Answers of a former server are
// dropped.
func (s *Service) Configure(disabled bool, server ServerConfig) error {
	var external *externalServer
	if server.URL != "" {
		c := s.config
		c.Server = server
		var err error
		if external, err = newExternalServer(c); err != nil {
			return err
		}
	}
	s.disabled.Store(disabled)
	s.external.Store(external)
	s.Forget()
	return nil
}

// server is the terminology server that is asked, nil for none.
func (s *Service) server() *externalServer { return s.external.Load() }

// enabled fails with not-supported, 501, when terminology is switched off.
func (s *Service) enabled() error {
	if s.disabled.Load() {
		return outcome.NotImplemented("terminology services disabled (terminology.enabled)")
	}
	return nil
}

// snapshot is the data derived from the resources at one stamp.
type snapshot struct {
	*Service
	number   uint64
	stamp    string
	question uint64       // that was answered with the stamp
	any      bool         // a terminology resource was stored at some time
	codes    codeSets     // by value set
	systems  codeSets     // by code system
	checked  atomic.Int64 // when the stamp was last compared, nanoseconds since started, or unchecked
}

// unchecked says that the stamp is to be compared before the snapshot is used again.
const unchecked = -int64(time.Hour)

var started = time.Now()

// now returns the snapshot of the stored resources as they are now. The answer to an earlier question never
// takes the place of the answer to a later one.
func (s *Service) now(ctx context.Context) (*snapshot, error) {
	question, forgotten := s.questions.Add(1), s.forgotten.Load()
	stamp, stored := "", false
	if s.config.Resources != nil {
		var err error
		if stamp, stored, err = s.config.Resources.TerminologyStamp(ctx); err != nil {
			return nil, fmt.Errorf("terminology stamp: %w", err)
		}
	}
	for {
		sn := s.current.Load()
		switch {
		case sn != nil && sn.stamp == stamp:
		case sn != nil && sn.question > question:
			return sn, nil
		default:
			next := &snapshot{Service: s, number: s.snapshots.Add(1), stamp: stamp, question: question, any: stored}
			next.checked.Store(unchecked)
			if !s.current.CompareAndSwap(sn, next) {
				continue
			}
			s.large.InvalidateAll() // of the snapshot before
			sn = next
		}
		sn.checked.Store(int64(time.Since(started)))
		if s.forgotten.Load() != forgotten { // the answer may be of before
			sn.checked.Store(unchecked)
		}
		return sn, nil
	}
}

// codeSystem returns the local code system with what its supplements add, nil where
// there is none. It fails for a supplement.
func (sn *snapshot) codeSystem(ctx context.Context, c canonical) (*codeSystem, error) {
	v, err := sn.resolve(ctx, typeCodeSystem, c)
	cs, ok := v.(*codeSystem)
	if !ok || err != nil {
		return nil, err
	}
	if cs.content == contentSupplement {
		return nil, noSystem(cs)
	}
	return sn.supplemented(ctx, cs)
}

// valueSet returns the local value set, nil where there is none. A value set that
// a code system implies is local when the code system is.
func (sn *snapshot) valueSet(ctx context.Context, c canonical) (*ValueSet, error) {
	v, err := sn.resolve(ctx, typeValueSet, c)
	if vs, ok := v.(*ValueSet); ok || err != nil {
		return vs, err
	}
	return sn.implicit(ctx, c)
}

// implicit returns the value set that stands for all codes of a code system: the
// one it names in CodeSystem.valueSet, "system?fhir_vs" and
// "system?fhir_vs=isa/code".
// Spec: https://hl7.org/fhir/R4/codesystem.html#CodeSystem.valueSet, snomedct.html#implicit.
func (sn *snapshot) implicit(ctx context.Context, c canonical) (*ValueSet, error) {
	system, query, ok := strings.Cut(c.url, "?fhir_vs")
	inc := Include{System: system, Version: c.version}
	switch {
	case !ok:
		implied, err := sn.implied()
		if inc.System = implied[c.url]; inc.System == "" || err != nil {
			return nil, err
		}
	case query == "":
	case strings.HasPrefix(query, "=isa/"):
		inc.Filter = []Filter{{Property: "concept", Op: "is-a", Value: strings.TrimPrefix(query, "=isa/")}}
	default:
		return nil, nil
	}
	cs, err := sn.codeSystem(ctx, canonical{inc.System, inc.Version})
	if cs == nil || err != nil || !cs.complete {
		return nil, err
	}
	return &ValueSet{URL: c.url, Version: cs.version, Name: cs.name, Status: "active",
		Compose: &Compose{Include: []Include{inc}}}, nil
}

// conceptMap returns the local concept map, nil where there is none.
func (sn *snapshot) conceptMap(ctx context.Context, c canonical) (*conceptMap, error) {
	v, err := sn.resolve(ctx, typeConceptMap, c)
	cm, _ := v.(*conceptMap)
	return cm, err
}

// resolve returns the resource that a canonical names, parsed, or nil: a stored
// one before one of a package, and of several the newest.
// Spec: https://hl7.org/fhir/R4/references.html#canonical.
func (sn *snapshot) resolve(ctx context.Context, typ string, c canonical) (any, error) {
	if c.url == "" {
		return nil, nil
	}
	name := key{sn.number, typ + " " + c.String()}
	if v, ok := sn.parsed.GetIfPresent(name); ok {
		return v.value, nil
	}
	if v, ok := sn.large.GetIfPresent(name); ok {
		return v.value, nil
	}
	v, err := sn.findResource(ctx, typ, c)
	if err != nil {
		return nil, err
	}
	if v.large {
		return v.value, nil
	}
	size := 500 // of the name, also for what does not exist
	if sn.stored(v) {
		size = v.size
	}
	sn.parsed.Set(name, sized{value: v.value, size: size})
	return v.value, nil
}

// readLarge parses a large stored resource, one at a time: concurrent callers wait for one result instead of
// parsing it again.
func (sn *snapshot) readLarge(typ string, c canonical, r fhir.Version) (sized, error) {
	sn.reading.Lock()
	defer sn.reading.Unlock()
	name := key{sn.number, typ + " " + c.String()}
	if v, ok := sn.large.GetIfPresent(name); ok {
		return v, nil
	}
	v, err := parseStored(typ, r)
	if err != nil {
		return sized{}, err
	}
	v.large = true
	sn.large.Set(name, v)
	time.AfterFunc(largeKept+time.Minute, sn.large.CleanUp)
	return v, nil
}

// anyStored reports whether any terminology resource was ever stored: a server
// without them is not asked for each code system and value set of R4.
func (sn *snapshot) anyStored() bool { return sn.config.Resources != nil && sn.any }

// stored reports whether v is counted under its name in this snapshot; what
// comes from a package is counted once, under number 0.
func (sn *snapshot) stored(v sized) bool { return v.size > 0 }

func (sn *snapshot) findResource(ctx context.Context, typ string, c canonical) (sized, error) {
	// 1. Stored resources. A supplement with the URL of its code system hides nothing.
	var best, supplement fhir.Version
	if sn.anyStored() {
		list, err := sn.config.Resources.Canonicals(ctx, typ, c.url)
		if err != nil {
			return sized{}, fmt.Errorf("look up %s %s: %w", typ, c.url, err)
		}
		version := ""
		for _, r := range list {
			top := topStrings(r.Body, "version", "content")
			v := top[0]
			if c.version != "" && v != c.version {
				continue
			}
			if typ == typeCodeSystem && top[1] == contentSupplement {
				supplement = r
				continue
			}
			if order := compareVersions(v, version); best.ID == "" || order > 0 || order == 0 && r.LastUpdated.After(best.LastUpdated) {
				best, version = r, v
			}
		}
		if best.ID != "" {
			if len(best.Body) > largeSize {
				return sn.readLarge(typ, c, best)
			}
			return parseStored(typ, best)
		}
	}

	// 2. The packages. They never change, so their data is cached apart from the generations.
	name := key{0, typ + " " + c.String()}
	v, ok := sn.parsed.GetIfPresent(name)
	if ok {
		return sized{value: v.value}, nil
	}
	lib, err := sn.packages()
	if err != nil {
		return sized{}, fmt.Errorf("open the packages: %w", err)
	}
	body, ok := lib.Resolve(c.String())
	if strings.Contains(c.url, "|") {
		// R4 has code systems of HL7 v2 with a version inside their url.
		for _, e := range lib.Entries(typ) {
			if e.URL == c.url {
				body, ok = lib.Read(typ, e.ID)
			}
		}
	}
	if !ok || !bytes.HasPrefix(body, []byte(`{"resourceType":"`+typ+`"`)) {
		if supplement.ID != "" {
			return parseStored(typ, supplement)
		}
		return sized{}, nil
	}
	if v, err = parse(typ, body); err != nil {
		return sized{}, err
	}
	sn.parsed.Set(name, v)
	return sized{value: v.value}, nil
}

func parseStored(typ string, r fhir.Version) (sized, error) {
	v, err := parse(typ, r.Body)
	if err != nil {
		return sized{}, outcome.UnprocessableContent(outcome.CodeInvalid, "%s/%s cannot be read as terminology", typ, r.ID).Because(err)
	}
	return v, nil
}

// Definition returns the CodeSystem, ValueSet or ConceptMap of the packages that has
// an id, as JSON.
func (s *Service) Definition(typ, id string) (body []byte, ok bool, err error) {
	lib, err := s.packages()
	if err != nil {
		return nil, false, fmt.Errorf("open the packages: %w", err)
	}
	body, ok = lib.Read(typ, id)
	return body, ok, nil
}

func (s *Service) readImplied() (map[string]string, error) {
	lib, err := s.packages()
	if err != nil {
		return nil, fmt.Errorf("open the packages: %w", err)
	}
	implied := make(map[string]string)
	for e, body := range lib.All(typeCodeSystem) {
		if vs := topStrings(body, "valueSet")[0]; vs != "" && !e.Supplement {
			implied[parseCanonical(vs).url] = e.URL
		}
	}
	return implied, nil
}

func (s *Service) readSupplements() (map[string][]string, error) {
	lib, err := s.packages()
	if err != nil {
		return nil, fmt.Errorf("open the packages: %w", err)
	}
	supplements := make(map[string][]string)
	for _, e := range lib.Entries(typeCodeSystem) {
		if !e.Supplement {
			continue
		}
		if body, ok := lib.Read(typeCodeSystem, e.ID); ok {
			of := parseCanonical(topStrings(body, "supplements")[0]).url
			supplements[of] = append(supplements[of], e.URL)
		}
	}
	return supplements, nil
}

// The resource types of this package.
const (
	typeCodeSystem = "CodeSystem"
	typeValueSet   = "ValueSet"
	typeConceptMap = "ConceptMap"
)

func parse(typ string, body []byte) (sized, error) {
	switch typ {
	case typeCodeSystem:
		cs, err := parseCodeSystem(body)
		if err != nil {
			return sized{}, err
		}
		return sized{value: cs, size: cs.size}, nil
	case typeValueSet:
		vs, err := ParseValueSet(body)
		return sized{value: vs, size: 500 + 2*len(body)}, err
	default:
		cm, err := parseConceptMap(body)
		return sized{value: cm, size: 500 + 2*len(body)}, err
	}
}

// compareVersions orders business versions: by their numbers, part by part, else
// as text.
func compareVersions(a, b string) int {
	for a != "" || b != "" {
		var x, y string
		x, a = cutVersion(a)
		y, b = cutVersion(b)
		m, errM := strconv.ParseUint(x, 10, 63)
		n, errN := strconv.ParseUint(y, 10, 63)
		order := cmp.Compare(x, y)
		if errM == nil && errN == nil {
			order = cmp.Compare(m, n)
		}
		if order != 0 {
			return order
		}
	}
	return 0
}

func cutVersion(s string) (part, rest string) {
	if i := strings.IndexAny(s, ".-"); i >= 0 {
		return s[:i], s[i+1:]
	}
	return s, ""
}

func notFound(typ string, c canonical) *outcome.Error {
	return outcome.New(outcome.CodeNotFound, "%s %s is not known here", typ, outcome.Clip(c.String()))
}

// CacheState returns the state of this server's caches.
func (s *Service) CacheState() telemetry.CacheState {
	parsed, large, expansions, sets := s.parsed.Stats(), s.large.Stats(), s.expansions.Stats(), s.sets.Stats()
	return telemetry.CacheState{
		Hits:      parsed.Hits + large.Hits + expansions.Hits + sets.Hits,
		Misses:    parsed.Misses + expansions.Misses + sets.Misses, // a miss of parsed also asks large
		Evictions: parsed.Evictions + large.Evictions + expansions.Evictions + sets.Evictions,
		Size:      s.parsed.EstimatedSize() + s.large.EstimatedSize() + s.expansions.EstimatedSize() + s.sets.EstimatedSize(),
		Bytes:     s.parsed.WeightedSize() + s.large.WeightedSize() + s.expansions.WeightedSize() + s.sets.WeightedSize(),
		Capacity:  s.parsed.GetMaximum() + s.large.GetMaximum() + s.expansions.GetMaximum() + s.sets.GetMaximum(),
	}
}

// ClearCaches empties the caches of this server.
func (s *Service) ClearCaches() {
	s.parsed.InvalidateAll()
	s.large.InvalidateAll()
	s.expansions.InvalidateAll()
	s.sets.InvalidateAll()
	s.Forget()
}
