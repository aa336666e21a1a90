package interaction

import (
	"context"
	"net/url"
	"slices"

	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/search"
	"kiln/server/store"
	"kiln/server/target"
)

// Operations carries out the $operations; server/operation has them.
type Operations interface {
	// Run carries out one. One that there is not is not-supported, 404; one that
	// changes something is not to be had by GET, 405.
	Run(ctx context.Context, p OperationParams) (Response, error)
	// Affects reports whether an operation can change something where it is called.
	Affects(p OperationParams) bool
	// Listed are the operations of a resource type, or with "" of the system, by name.
	Listed(typ string) []OperationListing
	// Needs are the interactions that the caller must be allowed on the resource type of the
	// operation that p calls, none where any caller may ask. known is false if there is no such operation.
	Needs(p OperationParams) (needs []access.Interaction, known bool)
	// Version differs when Listed does.
	Version() int64
	// Accepts are the content types of an operation's body, nil where it is a
	// resource.
	Accepts(name string) []string
	// Methods are the HTTP methods of an operation on its level, by the names of p alone;
	// nil means the methods of the path.
	Methods(p OperationParams) []string
}

// OperationListing is an operation as the capability statement lists it.
type OperationListing struct {
	Name       string // without $
	Definition string // canonical of its OperationDefinition
}

// OperationParams are the inputs of an operation.
type OperationParams struct {
	Name             string // with its $
	ResourceType, ID string // ID is "" on the type's level, both are on the system's
	Read             bool   // asked by GET
	Method           string // of HTTP; "" is GET with Read, else POST
	Bundled          bool   // asked by an entry of a batch or transaction
	Values           url.Values
	Body             []byte
	// From is the source of reads: the transaction that contains the operation; nil is the
	// store.
	From Reader
}

// operations are those in force, nil where none are served.
func (s *Service) operations() Operations {
	if s.Operations == nil {
		return nil
	}
	return s.Operations()
}

// affectsState reports whether the operation of a Bundle entry changes something.
func (s *Service) affectsState(t target.Target) bool {
	o := s.operations()
	return o != nil && t.Operation != "metadata" && o.Affects(OperationParams{Name: t.Operation, ResourceType: t.Type, ID: t.ID})
}

// Operation runs a $operation. One that there is not is not-supported, 404; one
// that changes something is not to be had by GET, 405.
// Spec: https://hl7.org/fhir/R4/operations.html#executing.
func (s *Service) Operation(ctx context.Context, p OperationParams) (Response, error) {
	if err := s.checkAllowed(ctx, access.Operation, p.ResourceType, p.ID); err != nil {
		return Response{}, err
	}
	o := s.operations()
	if o == nil {
		return Response{}, outcome.NotSupported("there is no operation %s", outcome.Clip(p.Name))
	}
	if p.From == nil && p.Name == "$everything" {
		d := s.demandOf(p.ResourceType, url.Values{"_type": append([]string{string(p.Body)}, p.Values["_type"]...)})
		d.beside = true
		return s.answerRead(ctx, d, func(ctx context.Context, from Reader) (Response, error) {
			read := p
			read.From = from
			return o.Run(ctx, read)
		})
	}
	if p.From == nil {
		p.From = s.Store
		var err error
		if ctx, err = s.onPrimary(ctx); err != nil {
			return Response{}, err
		}
	}
	return o.Run(ctx, p)
}

// OperationAccepts are the content types of an operation's body, nil where it is a
// resource.
func (s *Service) OperationAccepts(name string) []string {
	o := s.operations()
	if o == nil {
		return nil
	}
	return o.Accepts(name)
}

// OperationMethods are the methods of an operation on the level of p. If known is false
// there are none, and the methods of the path hold.
func (s *Service) OperationMethods(p OperationParams) (methods []string, known bool) {
	if o := s.operations(); o != nil {
		methods = o.Methods(p)
	}
	return methods, methods != nil
}

// listedOperations are the operations of a type, of the system with "".
func (s *Service) listedOperations(typ string) []OperationListing {
	o := s.operations()
	if o == nil {
		return nil
	}
	return o.Listed(typ)
}

func (s *Service) operationsVersion() int64 {
	o := s.operations()
	if o == nil {
		return 0
	}
	return o.Version()
}

// ServesOperation reports whether a type has an operation; name is without its $.
func (s *Service) ServesOperation(typ, name string) bool {
	return slices.ContainsFunc(s.listedOperations(typ), func(o OperationListing) bool { return o.Name == name })
}

// CheckAllowed asks access about an interaction, after making sure that the type is one of
// the model's.
func (s *Service) CheckAllowed(ctx context.Context, i access.Interaction, typ, id string) error {
	return s.checkAllowed(ctx, i, typ, id)
}

// MayReplace fails with forbidden, 403, where an update of a resource that exists would:
// the request can neither know of it nor change it. There need not be one of that id.
func (s *Service) MayReplace(ctx context.Context, typ, id string) error {
	w := &store.Write{Method: fhir.PUT, ResourceType: typ, ID: id}
	if err := s.GuardWrite(ctx, w); err != nil || w.Guard == nil {
		return err
	}
	current, err := s.Store.Read(ctx, typ, id)
	switch {
	case outcome.Is(err, outcome.CodeNotFound), outcome.Is(err, outcome.CodeDeleted):
		return nil
	case err != nil:
		return err
	}
	sees, err := w.Guard.Sees(current)
	if err == nil && !sees {
		err = w.Guard.Hidden()
	}
	if err != nil {
		return err
	}
	return w.Guard.May(&current, id, nil)
}

// NewWrite makes the write of a new resource that the server itself has made.
func (s *Service) NewWrite(typ string, body []byte) (*store.Write, error) {
	r, err := fhir.Decode(s.Model, body)
	if err != nil {
		return nil, err
	}
	w := &store.Write{Method: fhir.POST, ResourceType: typ, ID: s.NewID()}
	return w, s.draftWrite(w, r, nil)
}

// DraftWrite fills in body and index of w from r, as it is to be stored.
func (s *Service) DraftWrite(w *store.Write, r fhir.Resource, edits []fhir.Edit) error {
	return s.draftWrite(w, r, edits)
}

// Check fails with invalid, 422, when the service has a validator and it finds an
// error in r.
func (s *Service) Check(ctx context.Context, r fhir.Resource) error { return s.validate(ctx, r) }

// SearchOptions are the service's additions to a query. warnings collects warnings about
// the codes of terminology modifiers; it may be nil.
func (s *Service) SearchOptions(ctx context.Context, lenient bool, warnings *[]outcome.Issue) search.Options {
	return s.searchOptions(ctx, lenient, warnings)
}

// SearchPage runs q and makes a searchset of the result; self is its URL without what
// tells one page from another.
func (s *Service) SearchPage(ctx context.Context, from Reader, q *search.Query, self string) (Response, error) {
	from, err := s.VisibleReader(ctx, from)
	if err != nil {
		return Response{}, err
	}
	return s.searchPage(ctx, from, q, self)
}

// ReadFrom is Read from the store or a transaction.
func (s *Service) ReadFrom(ctx context.Context, from Reader, p ReadParams) (Response, error) {
	return s.read(ctx, from, p)
}

// Modify changes the current version of a resource by change, as a new version,
// which it returns. The result is not validated.
func (s *Service) Modify(ctx context.Context, typ, id string, change func(r fhir.Resource)) (fhir.Version, error) {
	if err := s.checkAllowed(ctx, access.Update, typ, id); err != nil {
		return fhir.Version{}, err
	}
	if !fhir.ValidID(id) {
		return fhir.Version{}, outcome.NotFound(typ, outcome.Clip(id))
	}
	if err := s.checkAllowed(ctx, access.Read, typ, id); err != nil { // the answer is the resource read
		return fhir.Version{}, err
	}
	w := &store.Write{Method: fhir.PUT, ResourceType: typ, ID: id, MustExist: true}
	if err := s.GuardWrite(ctx, w); err != nil {
		return fhir.Version{}, err
	}
	w.Modify = func(current fhir.Version) (*fhir.Body, *fhir.Index, error) {
		r, err := fhir.Decode(s.Model, current.Body)
		if err != nil {
			return nil, nil, err
		}
		change(r)
		// Written anew and read again: body and index are of the same text.
		text := fhir.Encode(make([]byte, 0, len(current.Body)+256), r)
		if r, err = fhir.Decode(s.Model, text); err != nil {
			return nil, nil, err
		}
		body, err := fhir.Splice(text, nil)
		if err != nil {
			return nil, nil, err
		}
		x, err := s.Parameters.Index(current.ID, r)
		return body, x, err
	}
	err := s.Store.Write(ctx, w)
	return w.Result, err
}
