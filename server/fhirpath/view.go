package fhirpath

import (
	"strings"

	"kiln/server/fhir"
)

// viewFunctions are the functions that SQL on FHIR adds; they exist with Options.View alone.
// Spec: SQL on FHIR 3.0.0-ballot, ViewDefinition, required additional functions.
func viewFunctions() map[string]function {
	return map[string]function{
		"getResourceKey": {0, 0, func(_ *compiler, f *invocation) (expr, static, error) {
			return &resourceKeyExpr{f.in}, kindStatic(StringKind), nil
		}},
		"getReferenceKey": {0, 1, func(c *compiler, f *invocation) (expr, static, error) {
			e := &referenceKeyExpr{in: f.in, at: f.At}
			if len(f.Args) == 1 {
				t, err := typeArgument(f.Args[0])
				if err != nil {
					return nil, f.st, c.fail(f.Args[0].Pos(), "%v", err)
				}
				if resolved, ok := c.program.types.resolve(t); !ok || resolved.fhir == "" {
					return nil, f.st, c.fail(t.At, "there is no resource type %s", t)
				}
				e.typ = t.Name
			}
			st := kindStatic(StringKind)
			st.many = f.st.many
			return e, st, nil
		}},
	}
}

// resourceKeyExpr is getResourceKey(): the logical id of a resource.
type resourceKeyExpr struct{ in expr }

func (e *resourceKeyExpr) eval(m *machine) error {
	base := len(m.stack)
	if err := e.in.eval(m); err != nil {
		return err
	}
	key := ""
	if list := m.stack[base:]; len(list) == 1 && list[0].kind == NodeKind && list[0].node.T != nil && list[0].node.T.Kind == fhir.ResourceKind {
		if r, ok := list[0].node.Element().(fhir.Resource); ok {
			key = r.Header().ID.Text
		}
	}
	m.stack = m.stack[:base]
	if key != "" {
		m.push(String(key))
	}
	return nil
}

// referenceKeyExpr is getReferenceKey(type): the ids of the resources of this server that
// References point at.
type referenceKeyExpr struct {
	in  expr
	typ string // "" for any
	at  int
}

func (e *referenceKeyExpr) eval(m *machine) error {
	base := len(m.stack)
	if err := e.in.eval(m); err != nil {
		return err
	}
	k := base
	for i := base; i < len(m.stack); i++ {
		if key := referenceKey(referenceOf(m.stack[i]), e.typ, m.ctx.LocalBases); key != "" {
			m.stack[k] = String(key)
			k++
		}
	}
	n := len(m.stack) - base
	m.stack = m.stack[:k]
	return m.spend(n, e.at)
}

// referenceKey is the id in a literal reference to a resource below one of bases, "" for another one.
func referenceKey(reference, typ string, bases []string) string {
	if strings.Contains(reference, "://") {
		local := false
		for _, base := range bases {
			if rest, ok := strings.CutPrefix(reference, strings.TrimSuffix(base, "/")+"/"); ok {
				reference, local = rest, true
				break
			}
		}
		if !local {
			return ""
		}
	}
	of, id, ok := strings.Cut(reference, "/")
	if !ok || ReferenceType(reference) != of || typ != "" && of != typ {
		return ""
	}
	id, _, _ = strings.Cut(id, "/_history/")
	if !fhir.ValidID(id) {
		return ""
	}
	return id
}

// rowIndexExpr is %rowIndex.
type rowIndexExpr struct{}

func (rowIndexExpr) eval(m *machine) error {
	m.push(Value{kind: IntegerKind, n: int64(m.ctx.RowIndex)})
	return nil
}
