package interaction

import (
	"bytes"
	"context"
	"encoding/json"

	"kiln/server/access"
	"kiln/server/fhir"
	"kiln/server/outcome"
	"kiln/server/store"
)

// Line is one line of an import.
type Line struct {
	JSON []byte // must not change until the write is done
	// ResourceType is the type that the line must have; "" is any.
	ResourceType string
	// Source becomes meta.source where the resource has none; "" becomes nothing.
	Source  string
	BaseURL string // as of CreateParams
}

// PrepareLine makes the write of a line: a PUT under the line's id, which makes no version
// where nothing changes. It fails as the PUT would, but does not check the targets of references.
func (s *Service) PrepareLine(ctx context.Context, l Line) (*store.Write, error) {
	ctx = context.WithValue(ctx, withoutTargets{}, true)
	in, err := fhir.Read(s.Model, withSource(l.JSON, l.Source))
	if err != nil {
		if _, plain := fhir.Read(s.Model, l.JSON); plain != nil {
			err = plain // with the columns of the line as it is
		}
		return nil, err
	}
	typ := in.Resource.Type().Name
	if l.ResourceType != "" && typ != l.ResourceType {
		return nil, outcome.Invalid("the line is a resource of type %s, the type of the input is %s", typ, l.ResourceType)
	}
	if len(in.Issues) > 0 {
		return nil, outcome.Unprocessable(append(in.Issues, s.ruleErrors(ctx, in)...))
	}
	r := in.Resource
	id := r.Header().ID.Text
	if id == "" {
		return nil, outcome.Invalid("the resource has no id").At(typ + ".id")
	}
	if err := checkID(id); err != nil {
		return nil, err
	}
	if err := s.mayImport(ctx, typ); err != nil {
		return nil, err
	}
	w := &store.Write{Method: fhir.PUT, ResourceType: typ, ID: id, MustExist: s.now().RefuseUpdateCreate}
	if err := s.GuardWrite(ctx, w); err != nil {
		return nil, err
	}
	if r, err = s.markLoaded(r); err != nil {
		return nil, err
	}
	if err := s.RefuseConditionalReferences(r, l.BaseURL); err != nil {
		return nil, err
	}
	if err := s.validate(ctx, r); err != nil {
		return nil, err
	}
	if err := s.draftWrite(w, r, nil); err != nil {
		return nil, err
	}
	w.UnlessEqual = w.Body.Equals
	if g, ok := w.Guard.(appendOnly); ok {
		// An AuditEvent that this server has exported lacks the tag of a loaded one, and a source.
		plain, err := fhir.Splice(l.JSON, nil)
		if err != nil {
			return nil, err
		}
		w.UnlessEqual = func(v fhir.Version) bool { return plain.Equals(v) || w.Body.Equals(v) }
		g.equal = w.UnlessEqual
		w.Guard = g
	}
	return w, nil
}

// mayImport is mayUpdate, without a look at the AuditEvents that there are.
func (s *Service) mayImport(ctx context.Context, typ string) error {
	if typ == "AuditEvent" {
		return s.checkAllowed(ctx, access.Create, typ, "")
	}
	return s.mayUpdate(ctx, typ, "")
}

// LineError is the error of a line's write as a client gets it.
func (s *Service) LineError(w *store.Write, err error) error { return s.updateCreateError(w, err) }

// RecycleLine gives the index of a finished line back for reuse.
func (s *Service) RecycleLine(w *store.Write) { s.recycleIndex(w) }

// withoutTargets finds in a context that the targets of references are not checked.
type withoutTargets struct{}

// ChecksTargets reports whether references must have targets in writes with this context.
func ChecksTargets(ctx context.Context) bool { return ctx.Value(withoutTargets{}) == nil }

// withSource gives a resource without meta.source this one. Text that is no JSON object stays as it is.
func withSource(text []byte, source string) []byte {
	if source == "" {
		return text
	}
	text = bytes.TrimLeft(text, " \t\r")
	if len(text) < 2 || text[0] != '{' {
		return text
	}
	value, err := json.Marshal(source)
	if err != nil {
		return text
	}
	meta := fhir.Property(text, "meta")
	if len(meta) == 0 {
		return joined(text[:1], []byte(`"meta":{"source":`), value, []byte("},"), text[1:])
	}
	if meta[0] != '{' || fhir.Property(meta, "source") != nil || fhir.Property(meta, "_source") != nil {
		return text
	}
	at := cap(text) - cap(meta) + 1 // meta is a part of text
	rest := text[at:]
	comma := []byte(",")
	if trimmed := bytes.TrimLeft(rest, " \t\r\n"); len(trimmed) > 0 && trimmed[0] == '}' {
		comma = nil
	}
	return joined(text[:at], []byte(`"source":`), value, comma, rest)
}

func joined(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
