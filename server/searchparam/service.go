package searchparam

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"kiln/server/fhir"
	"kiln/server/jobs"
	"kiln/server/search"
	"kiln/server/store"
)

// MaxAge is how long a server may use the search parameters that it has read
// without asking the database for their version, when Service.MaxAge is 0.
const MaxAge = 300 * time.Millisecond

// Service keeps the search parameters in force on one server. Its fields are set
// before Open and not changed.
type Service struct {
	Base  *search.Registry // the compiled parameters
	Value search.Indexer   // gen/index.Value
	Model *fhir.Model
	Store *store.Store
	// Extract gives an index the values of the compiled parameters, gen/index.Extract.
	Extract func(x *fhir.Index, r fhir.Resource)
	// BaseURLs are the service's own, without a trailing slash: absolute
	// references below them are local.
	BaseURLs []string
	NewID    func() string
	Now      func() time.Time
	Logger   *slog.Logger
	// Forget is called when a profile, value set or code system was written, by
	// any server; may be nil.
	Forget func()
	// MaxAge must be the same on all servers of a database; 0 means the constant.
	MaxAge time.Duration
	// SearchTime is how long a search may be under way; nil means ten minutes.
	SearchTime func() time.Duration

	current      atomic.Pointer[snapshot]
	refresh      sync.Mutex  // one reader of the database at a time
	renewing     atomic.Bool // in the background
	wake         chan struct{}
	core         atomic.Pointer[jobs.Core] // does the work of the jobs; nil before ReindexOn
	indexes      sync.Pool                 // of *fhir.Index
	fingerprints search.Fingerprints       // of Base
}

// snapshot is the search parameters in force at one moment, with the version of the
// database that they were read at. It is never changed.
type snapshot struct {
	store.ParametersState
	registry   *search.Registry
	asked      time.Time
	stored     map[int64]*stored // by surrogate
	sorts      []store.SortIndex
	otherBuild error // the index is of another build; registry answers nothing then
}

// Compiled is a Service of the compiled parameters alone, for a program without a
// database: Check and Current answer.
func Compiled(base *search.Registry, value search.Indexer) *Service {
	s := &Service{Base: base, Value: value}
	s.current.Store(s.first())
	return s
}

// first is the snapshot before anything was read.
func (s *Service) first() *snapshot {
	return &snapshot{registry: s.Base, ParametersState: store.ParametersState{Version: -1}, stored: map[int64]*stored{}}
}

// Open reads the stored SearchParameters and makes the store use the Service. It takes over an index of another build,
// with jobs that bring it up to date.
func (s *Service) Open(ctx context.Context) error {
	if s.MaxAge == 0 {
		s.MaxAge = MaxAge
	}
	s.wake = make(chan struct{}, 1)
	s.fingerprints = s.Base.Fingerprints()
	s.current.Store(s.first())
	s.Store.IndexBy(s)
	s.Store.Follow("SearchParameter", store.Hook{InTx: s.InTx, Committed: s.Committed})
	written := store.Hook{
		InTx: func(ctx context.Context, t *store.Tx, _ []*store.Write) (bool, error) {
			return true, t.BumpDefinitions(ctx)
		},
		Committed: func(ctx context.Context, _ bool) {
			if err := s.Refresh(ctx); err != nil {
				s.Logger.Warn("the version of definitions cannot be read", slog.Any("error", err))
				if s.Forget != nil {
					s.Forget() // the next request knows what was written all the same
				}
			}
		},
	}
	for _, typ := range []string{"StructureDefinition", "ValueSet", "CodeSystem", "CapabilityStatement", "ImplementationGuide"} {
		s.Store.Follow(typ, written)
	}
	err := s.Refresh(ctx)
	if err != nil && s.current.Load().otherBuild != nil {
		if err := s.takeOver(ctx); err != nil {
			return fmt.Errorf("take over the index: %w", err)
		}
		err = s.Refresh(ctx)
	}
	if err != nil {
		return fmt.Errorf("read the search parameters: %w", err)
	}
	return nil
}

// Current returns the search parameters in force. When nobody can tell, for the
// database does not answer, it is a registry that answers nothing
// (search.Registry.Err).
func (s *Service) Current() *search.Registry {
	at := s.current.Load()
	switch age := store.TimeSince(at.asked); {
	case age < s.MaxAge/2:
	case age < s.MaxAge:
		if s.renewing.CompareAndSwap(false, true) {
			go func() {
				defer s.renewing.Store(false)
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				defer cancel()
				if err := s.Refresh(ctx); err != nil && s.current.Load().otherBuild == nil {
					s.Logger.Warn("the search parameters cannot be read", slog.Any("error", err))
				}
			}()
		}
	case s.Store.ReadsContinue(): // a replica serves only where its row is that of these parameters
	default:
		if err := s.refreshOrContinue(); err != nil {
			return at.registry.Unavailable(err)
		}
		at = s.current.Load()
	}
	return at.registry
}

// refreshOrContinue is Refresh, which ends where the primary is found to be lost meanwhile and replicas serve reads.
func (s *Service) refreshOrContinue() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if !s.Store.HasReplicas() {
		return s.Refresh(ctx)
	}
	done := make(chan error, 1)
	go func() { done <- s.Refresh(ctx) }()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case err := <-done:
			if err != nil && s.Store.ReadsContinue() {
				return nil
			}
			return err
		case <-look.C:
			if s.Store.ReadsContinue() {
				return nil
			}
		}
	}
}

// Err is why the server can neither search nor write, nil for nearly all.
func (s *Service) Err() error { return s.Current().Err() }

// Refresh makes what Current returns as new as the database. It fails with
// exception, 503, when the index is of another build.
func (s *Service) Refresh(ctx context.Context) error {
	start := time.Now()
	s.refresh.Lock()
	defer s.refresh.Unlock()
	at := s.current.Load()
	if at.asked.After(start) {
		return at.otherBuild // somebody else asked after this call began
	}
	asked := time.Now()
	state, err := s.Store.ParametersState(ctx)
	if err != nil {
		return err
	}
	next := *at
	if next.Definitions = state.Definitions; next.Definitions != at.Definitions && s.Forget != nil {
		s.Forget()
	}
	if state.Fingerprint != s.fingerprints.All {
		return s.refuseSearches(&next, state, asked)
	}
	next.Fingerprint, next.otherBuild = state.Fingerprint, nil
	if state.Epoch != at.Epoch { // surrogates and versions may be given again
		known := *at
		known.stored = map[int64]*stored{}
		at = &known
		next.Epoch = state.Epoch
	}
	// asked stays the time of the first question: what was read since may be older than the time of the last one.
	if state.Version != at.Version || state.Progress != at.Progress || at.otherBuild != nil {
		var list []store.StoredParameter
		if next.Version, next.Progress, list, err = s.Store.StoredParameters(ctx, at.versionsByKey()); err != nil {
			return err
		}
		// Read after the version: newer rows make a write fail once more, and do no other harm.
		if next.sorts, err = s.Store.SortIndexes(ctx); err != nil {
			return err
		}
		next.stored = s.readParameters(at, list)
		for rid, sp := range next.stored {
			if sp.err != nil && at.stored[rid] != sp {
				s.Logger.Warn("a stored SearchParameter is not in force", slog.String("id", sp.id), slog.Any("error", sp.err))
			}
		}
		jobs, err := s.Store.ReindexJobs(ctx)
		if err != nil {
			return err
		}
		next.registry = s.buildRegistry(&next, jobs)
	}
	next.asked = asked
	s.current.Store(&next)
	return nil
}

// Decode reads a stored resource.
func (s *Service) Decode(body []byte) (fhir.Resource, error) { return fhir.Decode(s.Model, body) }
