package operation

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"kiln/server/interaction"
	"kiln/server/outcome"
)

// Request is what an operation is asked.
type Request = interaction.OperationParams

// Operation is a $operation that the service has.
type Operation struct {
	Types                  []string // resource types that have it; nil is every one
	System, Type, Instance bool     // where it can be called
	// Definition is the canonical of its OperationDefinition; {type} stands for
	// the resource type.
	Definition string
	Affects    bool // it changes something, and so cannot be a GET
	// Accepts are the content types of its body where that is no resource.
	Accepts []string
	Run     func(ctx context.Context, p Request) (interaction.Response, error)
}

// on reports whether the operation can be called where p calls it.
func (o Operation) on(p Request) bool {
	switch {
	case p.ResourceType == "":
		return o.System
	case o.Types != nil && !slices.Contains(o.Types, p.ResourceType):
		return false
	case p.ID == "":
		return o.Type
	}
	return o.Instance
}

// Set are the operations in force. A request sees one state of them, whatever is
// added meanwhile. The zero value of all but Service is an empty set.
type Set struct {
	*interaction.Service

	mu      sync.Mutex // of those who change current
	current atomic.Pointer[snapshot]
}

// snapshot is one state of a Set. It is never changed.
type snapshot struct {
	version int64
	byName  map[string][]Operation
}

var nothing = new(snapshot)

func (s *Set) now() *snapshot {
	if c := s.current.Load(); c != nil {
		return c
	}
	return nothing
}

// New returns the operations that this package has itself.
// Spec: https://hl7.org/fhir/R4/operationslist.html.
func New(service *interaction.Service) *Set {
	s := &Set{Service: service}
	s.addInstance()
	s.addTerminology()
	s.addIndex()
	return s
}

// Add makes an operation known under name, which starts with $. A later one of the
// same name and types replaces an earlier one.
func (s *Set) Add(name string, o Operation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.now()
	next := &snapshot{version: was.version + 1, byName: maps.Clone(was.byName)}
	if next.byName == nil {
		next.byName = make(map[string][]Operation)
	}
	next.byName[name] = append([]Operation{o}, next.byName[name]...)
	s.current.Store(next)
}

// find returns the operation that p calls.
func (s *Set) find(p Request) (Operation, bool) {
	for _, o := range s.now().byName[p.Name] {
		if o.on(p) {
			return o, true
		}
	}
	return Operation{}, false
}

// Affects reports whether the operation that p calls can change something.
func (s *Set) Affects(p Request) bool {
	o, ok := s.find(p)
	return ok && o.Affects
}

// Version differs when Listed does.
func (s *Set) Version() int64 { return s.now().version }

// Accepts are the content types of an operation's body, nil where it is a resource.
func (s *Set) Accepts(name string) []string {
	for _, o := range s.now().byName[name] {
		if o.Accepts != nil {
			return o.Accepts
		}
	}
	return nil
}

// Listed are the operations of a resource type, or with "" of the system, by name.
func (s *Set) Listed(typ string) []interaction.OperationListing {
	var out []interaction.OperationListing
	now := s.now()
	for _, name := range slices.Sorted(maps.Keys(now.byName)) {
		for _, o := range now.byName[name] {
			if typ == "" && o.System || typ != "" && (o.Type || o.Instance) && (o.Types == nil || slices.Contains(o.Types, typ)) {
				out = append(out, interaction.OperationListing{Name: name[1:], Definition: strings.ReplaceAll(o.Definition, "{type}", typ)})
				break
			}
		}
	}
	return out
}

// Run carries out the operation that p calls. One that there is not is
// not-supported, 404; one that changes something is not to be had by GET, 405.
func (s *Set) Run(ctx context.Context, p Request) (interaction.Response, error) {
	o, ok := s.find(p)
	if ok && o.Affects && p.Read {
		return interaction.Response{}, outcome.NotSupported("%s changes something and needs a POST", p.Name).WithStatus(http.StatusMethodNotAllowed)
	}
	if ok {
		return o.Run(ctx, p)
	}
	where := "here"
	switch {
	case p.ResourceType != "" && p.ID == "":
		where = "on the type " + p.ResourceType
	case p.ResourceType != "":
		where = "on a resource of type " + p.ResourceType
	}
	return interaction.Response{}, outcome.NotSupported("there is no operation %s %s", clip(p.Name), where)
}

// addInstance makes known the operations on stored resources.
func (s *Set) addInstance() {
	s.Add("$everything", Operation{
		Types: []string{"Patient", "Encounter"}, Instance: true,
		Definition: "http://hl7.org/fhir/OperationDefinition/{type}-everything",
		Run: func(ctx context.Context, p Request) (interaction.Response, error) {
			in, err := s.inputs(p, "", "", everythingInputs...)
			if err != nil {
				return interaction.Response{}, err
			}
			return s.everything(ctx, p.From, EverythingParams{ResourceType: p.ResourceType, ID: p.ID, Values: in.text})
		},
	})
	s.Add("$meta", Operation{
		System: true, Type: true, Instance: true,
		Definition: "http://hl7.org/fhir/OperationDefinition/Resource-meta",
		Run: func(ctx context.Context, p Request) (interaction.Response, error) {
			return s.meta(ctx, p.From, MetaParams{ResourceType: p.ResourceType, ID: p.ID})
		},
	})
	s.Add("$meta-add", Operation{
		Instance: true, Affects: true,
		Definition: "http://hl7.org/fhir/OperationDefinition/Resource-meta-add",
		Run: func(ctx context.Context, p Request) (interaction.Response, error) {
			return s.MetaAdd(ctx, MetaParams{ResourceType: p.ResourceType, ID: p.ID, Body: p.Body})
		},
	})
	s.Add("$meta-delete", Operation{
		Instance: true, Affects: true,
		Definition: "http://hl7.org/fhir/OperationDefinition/Resource-meta-delete",
		Run: func(ctx context.Context, p Request) (interaction.Response, error) {
			return s.MetaDelete(ctx, MetaParams{ResourceType: p.ResourceType, ID: p.ID, Body: p.Body})
		},
	})
}

// clip bounds what an error repeats of its input.
func clip(s string) string {
	if len(s) > 100 {
		return s[:100] + "…"
	}
	return s
}
