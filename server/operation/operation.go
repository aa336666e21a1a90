package operation

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/outcome"
	"kiln/server/parameters"
)

// Request is the input of an operation.
type Request = interaction.OperationParams

// Operation completes the OperationDefinition of a $operation.
type Operation struct {
	// Definition is the canonical of its OperationDefinition, which says where it is
	// called, with which inputs, and whether it can be called by GET.
	Definition string
	// Run runs the operation. The inputs have the definition's names, types and numbers;
	// these have been checked.
	Run func(ctx context.Context, p Request, in *Inputs) (interaction.Response, error)
	// Needs are the interactions that the caller must be allowed on the resource type, by the level on
	// which p calls the operation. nil is for operations that any caller may ask for: they decide on
	// each resource by itself.
	Needs func(p Request) []access.Interaction
	// Writes says that it changes something, where the definition does not.
	Writes bool
	// System adds the level of the system; InstanceOnly takes the type's level away.
	System, InstanceOnly bool
	// Unserved are inputs of the definition that are refused by name: left out they
	// could change the answer.
	Unserved []string
	// Further are inputs that the definition lacks.
	Further []fhir.OperationParameter
	// Body is the input that a resource in the body is, instead of Parameters; "" takes
	// Parameters alone.
	Body string
	// Accepts are the content types of its body where that is no resource. Such a body
	// is Run's to read, like every one with OwnBody.
	Accepts []string
	OwnBody bool
}

// entry is an operation with its definition.
type entry struct {
	Operation
	def *fhir.OperationDefinition
}

// on reports whether the operation can be called where p calls it.
func (e *entry) on(p Request) bool {
	switch {
	case p.ResourceType == "":
		return e.def.System || e.System
	case !e.def.Of(p.ResourceType):
		return false
	case p.ID == "":
		return e.def.Type && !e.InstanceOnly
	}
	return e.def.Instance
}

// of reports whether a resource type has the operation, with "" the system.
func (e *entry) of(typ string) bool {
	if typ == "" {
		return e.def.System || e.System
	}
	return (e.def.Type || e.def.Instance) && e.def.Of(typ)
}

func (e *entry) affects() bool { return e.def.AffectsState || e.Writes }

// Set contains the operations in force. A request sees one state of them, independent of later changes.
type Set struct {
	*interaction.Service

	mu      sync.Mutex // guards changes of current
	current atomic.Pointer[snapshot]
}

// snapshot is one state of a Set. It is never changed.
type snapshot struct {
	version int64
	byName  map[string][]*entry
	names   []string // sorted
}

// New returns the operations that the server has itself, but for $validate.
// definitions are the shapes that Operation.Definition names.
// Spec: https://hl7.org/fhir/R4/operationslist.html.
func New(service *interaction.Service, definitions []fhir.OperationDefinition) (*Set, error) {
	s := &Set{Service: service}
	s.current.Store(new(snapshot))
	err := s.Register(definitions,
		s.patientEverything(), s.encounterEverything(),
		s.metaOperation(), s.metaAdd(), s.metaDelete(),
		s.expandOperation(), s.valueSetValidateCode(), s.codeSystemValidateCode(), s.lookupOperation(), s.subsumesOperation(), s.translateOperation(),
		s.reindexOperation(), s.installPackage(), s.packagesOperation(), s.removePackage())
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Register adds operations to those in force. It fails when a definition is not
// among definitions, or does not have an input that the operation says it has.
func (s *Set) Register(definitions []fhir.OperationDefinition, operations ...Operation) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.current.Load()
	next := &snapshot{version: was.version + 1, byName: make(map[string][]*entry, len(was.byName)+len(operations))}
	for name, list := range was.byName {
		next.byName[name] = slices.Clone(list)
	}
	for _, o := range operations {
		i := slices.IndexFunc(definitions, func(d fhir.OperationDefinition) bool { return d.URL == o.Definition })
		if i < 0 {
			return fmt.Errorf("there is no OperationDefinition %s", o.Definition)
		}
		def := &definitions[i]
		for _, name := range append(slices.Clone(o.Unserved), o.Body) {
			if _, ok := def.Input(name); !ok && name != "" {
				return fmt.Errorf("%s has no input %s", o.Definition, name)
			}
		}
		next.byName["$"+def.Code] = append(next.byName["$"+def.Code], &entry{o, def})
	}
	for name := range next.byName {
		next.names = append(next.names, name)
	}
	slices.Sort(next.names)
	s.current.Store(next)
	return nil
}

// find returns the operation that p calls.
func (s *Set) find(p Request) *entry {
	for _, e := range s.current.Load().byName[p.Name] {
		if e.on(p) {
			return e
		}
	}
	return nil
}

// Has reports whether the server has an operation of that name, with its $, on any
// level of any type.
func (s *Set) Has(name string) bool { return len(s.current.Load().byName[name]) > 0 }

// Affects reports whether the operation that p calls can change something.
func (s *Set) Affects(p Request) bool {
	e := s.find(p)
	return e != nil && e.affects()
}

// onType returns a function for Operation.Needs that does not depend on the level.
func onType(list ...access.Interaction) func(Request) []access.Interaction {
	return func(Request) []access.Interaction { return list }
}

// Needs are the interactions that the operation that p calls needs.
func (s *Set) Needs(p Request) (needs []access.Interaction, known bool) {
	e := s.find(p)
	if e == nil {
		return nil, false
	}
	return e.needs(p), true
}

func (e *entry) needs(p Request) []access.Interaction {
	if e.Operation.Needs == nil {
		return nil
	}
	return e.Operation.Needs(p)
}

// Version differs when Listed does.
func (s *Set) Version() int64 { return s.current.Load().version }

// Accepts are the content types of an operation's body, nil where it is a resource.
func (s *Set) Accepts(name string) []string {
	for _, e := range s.current.Load().byName[name] {
		if e.Operation.Accepts != nil {
			return e.Operation.Accepts
		}
	}
	return nil
}

// Listed are the operations of a resource type, or with "" of the system, by name.
func (s *Set) Listed(typ string) []interaction.OperationListing {
	var out []interaction.OperationListing
	now := s.current.Load()
	for _, name := range now.names {
		for _, e := range now.byName[name] {
			if e.of(typ) {
				out = append(out, interaction.OperationListing{Name: name[1:], Definition: e.def.URL})
				break
			}
		}
	}
	return out
}

// Methods returns nil: the routes know the methods of the server's own operations.
func (s *Set) Methods(Request) []string { return nil }

// Run carries out the operation that p calls. One that there is not is
// not-supported, 404, with the names that are near; one that changes something is
// not to be had by GET, 405.
// Spec: https://hl7.org/fhir/R4/operations.html#executing.
func (s *Set) Run(ctx context.Context, p Request) (interaction.Response, error) {
	e := s.find(p)
	switch {
	case e == nil:
		return interaction.Response{}, s.unknown(p)
	case p.Method == http.MethodPut:
		return interaction.Response{}, outcome.MethodNotAllowed("%s is called by POST", p.Name)
	case e.affects() && p.Read:
		return interaction.Response{}, outcome.MethodNotAllowed("%s changes something and needs a POST", p.Name)
	}
	for _, i := range e.needs(p) {
		if err := s.CheckAllowed(ctx, i, p.ResourceType, p.ID); err != nil {
			return interaction.Response{}, err
		}
	}
	in, err := e.readInputs(s.Model, p)
	if err != nil {
		return interaction.Response{}, err
	}
	return e.Operation.Run(ctx, p, in)
}

// unknown says that there is no operation where p calls one, and which there are.
func (s *Set) unknown(p Request) error {
	where := "here"
	switch {
	case p.ResourceType != "" && p.ID == "":
		where = "on the type " + p.ResourceType
	case p.ResourceType != "":
		where = "on a resource of type " + p.ResourceType
	}
	now := s.current.Load()
	var near []string
	for _, name := range now.names {
		if slices.ContainsFunc(now.byName[name], func(e *entry) bool { return e.on(p) }) {
			near = append(near, name)
		}
	}
	if len(near) == 0 {
		return outcome.NotSupported("there is no operation %s %s", outcome.Clip(p.Name), where)
	}
	return outcome.NotSupported("there is no operation %s %s; there are %s", outcome.Clip(p.Name), where, strings.Join(near, ", "))
}

// parametersResponse answers with a Parameters resource.
func parametersResponse(status int, list []parameters.Parameter) (interaction.Response, error) {
	body, err := parameters.Write(list)
	return interaction.Response{Status: status, Body: body}, err
}

// answerBody answers 200 with a resource.
func answerBody(body []byte, err error) (interaction.Response, error) {
	if err != nil {
		return interaction.Response{}, err
	}
	return interaction.Response{Status: http.StatusOK, Body: body}, nil
}
