package view

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"kiln/gen/r4"
	"kiln/server/fhir"
	"kiln/server/fhirpath"
	"kiln/server/outcome"
)

// View is a compiled ViewDefinition. It is immutable: any number of goroutines may evaluate it.
type View struct {
	Name, URL, Version string
	Resource           string // the resource type
	Columns            []Column
	Wheres             []Where
	// Clock reports whether a path depends on the time of the evaluation.
	Clock bool

	root      *selection
	constants map[string]fhirpath.Value
}

// Where is a compiled element of ViewDefinition.where.
type Where struct {
	Source  string
	Program *fhirpath.Program
	Expr    *fhirpath.Expr
}

// maxColumns bounds the columns of a view; a table of PostgreSQL has at most 1600.
const maxColumns = 1500

// maxSelects bounds the nested selections of a view.
const maxSelects = 5000

var namePattern = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]*$`)

// unresolvable are the functions that need more than the resource.
var unresolvable = []string{"resolve", "memberOf", "conformsTo", "subsumes", "subsumedBy"}

// reservedConstants are the names that constants cannot have.
var reservedConstants = []string{"resource", "rowIndex", "context", "rootResource", "sct", "loinc", "ucum", "this", "index", "total"}

// compiler collects the issues of a ViewDefinition.
type compiler struct {
	model     *fhir.Model
	resource  *fhir.Type
	constants map[string]fhirpath.Value
	functions map[string]bool // those that the profile allows; nil allows all
	view      *View
	issues    []outcome.Issue
	names     map[string]bool
	selects   int
}

// maxIssues bounds the reported faults of one view.
const maxIssues = 100

func (c *compiler) fault(expression, format string, args ...any) {
	if len(c.issues) < maxIssues {
		c.issues = append(c.issues, outcome.Issue{Severity: outcome.Failure, Code: outcome.CodeInvalid, Diagnostics: fmt.Sprintf(format, args...), Expression: expression})
	}
}

// Compile checks and compiles a ViewDefinition. It fails with invalid, 422, one issue for each fault.
func Compile(model *fhir.Model, d *r4.ViewDefinition) (*View, error) {
	c := &compiler{model: model, names: make(map[string]bool), constants: make(map[string]fhirpath.Value),
		view: &View{Name: d.Name.Text, URL: d.URL.Text, Version: d.Version.Text, Resource: d.Resource.Text}}
	const root = "ViewDefinition"
	switch r, ok := model.Resources[d.Resource.Text]; {
	case d.Resource.Text == "":
		c.fault(root+".resource", "resource is missing: it names the resource type of the view")
	case !ok:
		c.fault(root+".resource", "%q is no resource type that is stored here%s", outcome.Clip(d.Resource.Text), outcome.DidYouMean(d.Resource.Text, slices.Collect(mapKeys(model.Resources))))
	default:
		c.resource = r.Type()
	}
	if len(d.FHIRVersion) > 0 && !slices.ContainsFunc(d.FHIRVersion, func(v fhir.Code) bool { return v.Text == "4.0" || strings.HasPrefix(v.Text, "4.0.") }) {
		c.fault(root+".fhirVersion", "the view is for other versions of FHIR: this server has 4.0.1")
	}
	c.profiles(d)
	c.readConstants(d.Constant)
	c.view.constants = c.constants
	if len(d.Select) == 0 {
		c.fault(root+".select", "select is missing: a view has at least one")
	}
	for i := range d.Where {
		at := fmt.Sprintf("%s.where[%d].path", root, i)
		shape := c.focus()
		p, e := c.path(at, d.Where[i].Path.Text, shape, false)
		if p == nil {
			continue
		}
		if !canBe(p.Shape(), "boolean") {
			c.fault(at, "where needs a Boolean, found %s", p.Shape().Describe())
		}
		c.view.Wheres = append(c.view.Wheres, Where{Source: d.Where[i].Path.Text, Program: p, Expr: e})
	}
	parts := c.selections(root+".select", d.Select, c.focus())
	c.view.root = &selection{parts: parts}
	if len(c.view.Columns) == 0 && len(c.issues) == 0 {
		c.fault(root+".select", "the view has no column")
	}
	if len(c.view.Columns) > maxColumns {
		c.fault(root+".select", "the view has %d columns; a view has at most %d", len(c.view.Columns), maxColumns)
	}
	c.requireColumns(d)
	if len(c.issues) > 0 {
		return nil, outcome.Unprocessable(c.issues)
	}
	return c.view, nil
}

func mapKeys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// focus is the shape of the view's resource.
func (c *compiler) focus() fhirpath.Shape {
	if c.resource == nil { // reported already
		return fhirpath.Shape{}
	}
	return fhirpath.ShapeOf(c.resource)
}

// readConstants takes the constants of a view.
func (c *compiler) readConstants(list []r4.ViewDefinitionConstant) {
	for i := range list {
		at := fmt.Sprintf("ViewDefinition.constant[%d]", i)
		name := list[i].Name.Text
		_, again := c.constants[name]
		switch {
		case !namePattern.MatchString(name):
			c.fault(at+".name", "a constant's name begins with a letter and has letters, digits and underscores, found %q", outcome.Clip(name))
			continue
		case slices.Contains(reservedConstants, name):
			c.fault(at+".name", "%%%s is a variable of FHIRPath: choose another name for the constant", name)
			continue
		case again:
			c.fault(at+".name", "there are two constants named %s", name)
			continue
		}
		v, ok := constantValue(list[i].Value)
		if !ok {
			c.fault(at+".value", "the constant %s has exactly one value[x]", name)
			v = fhirpath.String("")
		}
		c.constants[name] = v
	}
}

// constantValue is the value of a constant in FHIRPath.
func constantValue(e fhir.Element) (fhirpath.Value, bool) {
	if e == nil || fhir.NodeOf(e).Text() == "" {
		return fhirpath.Value{}, false
	}
	if n, ok := e.(*fhir.Integer64); ok {
		return fhirpath.Number(n.Text)
	}
	return fhirpath.NodeValue(fhir.NodeOf(e)), true
}

// path compiles one path; it returns nil after a fault.
func (c *compiler) path(at, text string, focus fhirpath.Shape, missing bool) (*fhirpath.Program, *fhirpath.Expr) {
	if text == "" {
		c.fault(at, "the path is missing")
		return nil, nil
	}
	e, err := fhirpath.Parse(text)
	if err != nil {
		c.fault(at, "%v", err)
		return nil, nil
	}
	bad := false
	fhirpath.Walk(e.Root, func(n fhirpath.Node) bool {
		call, ok := n.(*fhirpath.Call)
		if !ok {
			return true
		}
		switch {
		case slices.Contains(unresolvable, call.Name):
			c.fault(at, "%s() needs more than the resource: a view does not have it", call.Name)
			bad = true
		case c.functions != nil && !c.functions[call.Name]:
			c.fault(at, "%s() is no function of a ShareableViewDefinition", call.Name)
			bad = true
		}
		c.view.Clock = c.view.Clock || call.Name == "now" || call.Name == "today" || call.Name == "timeOfDay"
		return true
	})
	if bad || c.resource == nil {
		return nil, nil
	}
	p, err := fhirpath.CompileExpr(e, fhirpath.Options{Model: c.model, Focus: &focus, Resource: c.resource, Variables: []string{}, Constants: c.constants, View: true, Missing: missing})
	if err != nil {
		c.fault(at, "%v", err)
		return nil, nil
	}
	return p, e
}

// selections compiles sibling selections: their rows are crossed.
func (c *compiler) selections(at string, list []r4.ViewDefinitionSelect, focus fhirpath.Shape) []*selection {
	var out []*selection
	for i := range list {
		out = append(out, c.selection(fmt.Sprintf("%s[%d]", at, i), &list[i], focus))
	}
	return out
}

// selection compiles one selection. Its own columns come first, then the columns of select, then the columns of unionAll.
func (c *compiler) selection(at string, d *r4.ViewDefinitionSelect, focus fhirpath.Shape) *selection {
	s := &selection{}
	if c.selects++; c.selects > maxSelects {
		c.fault(at, "the view has more than %d selections", maxSelects)
		return s
	}
	given := 0
	for _, is := range []bool{d.ForEach.Present(), d.ForEachOrNull.Present(), len(d.Repeat) > 0} {
		if is {
			given++
		}
	}
	if given > 1 {
		c.fault(at, "a select has one of forEach, forEachOrNull and repeat")
	}
	switch {
	case d.ForEach.Present():
		s.each, focus = c.iteration(at+".forEach", d.ForEach.Text, focus)
	case d.ForEachOrNull.Present():
		s.orNull = true
		s.each, focus = c.iteration(at+".forEachOrNull", d.ForEachOrNull.Text, focus)
	case len(d.Repeat) > 0:
		s.repeat, focus = c.repetition(at, d.Repeat, focus)
	}
	first := len(c.view.Columns)
	for i := range d.Column {
		c.column(fmt.Sprintf("%s.column[%d]", at, i), &d.Column[i], focus, s)
	}
	s.parts = c.selections(at+".select", d.Select, focus)
	if len(d.UnionAll) > 0 {
		s.union = c.union(at+".unionAll", d.UnionAll, focus)
	}
	s.first, s.last = first, len(c.view.Columns)
	return s
}

// iteration compiles the path of forEach or forEachOrNull.
func (c *compiler) iteration(at, text string, focus fhirpath.Shape) (*fhirpath.Program, fhirpath.Shape) {
	p, _ := c.path(at, text, focus, false)
	if p == nil {
		return nil, fhirpath.Shape{}
	}
	return p, p.Shape().Item()
}

// repetition compiles the paths of repeat: their results are their input again. An element that a
// node lacks is empty, as the official tests have it.
func (c *compiler) repetition(at string, list []fhir.String, focus fhirpath.Shape) ([]*fhirpath.Program, fhirpath.Shape) {
	var out []*fhirpath.Program
	var found fhirpath.Shape
	for round := 0; ; round++ {
		before := found
		out = nil
		for i := range list {
			p, _ := c.path(fmt.Sprintf("%s.repeat[%d]", at, i), list[i].Text, focus, true)
			if p == nil {
				return nil, fhirpath.Shape{}
			}
			out = append(out, p)
			found = found.Or(p.Shape())
		}
		if round > 20 || before.Same(found) {
			return out, found.Item()
		}
		focus = focus.Or(found).Item()
	}
}

// column compiles one column.
func (c *compiler) column(at string, d *r4.ViewDefinitionSelectColumn, focus fhirpath.Shape, s *selection) {
	column := Column{Name: d.Name.Text, Collection: d.Collection.Text == "true", Expression: at}
	switch {
	case !namePattern.MatchString(column.Name):
		c.fault(at+".name", "a column's name begins with a letter and has letters, digits and underscores, found %q", outcome.Clip(column.Name))
	case c.names[column.Name]:
		c.fault(at+".name", "there are two columns named %s", column.Name)
	}
	c.names[column.Name] = true
	p, e := c.path(at+".path", d.Path.Text, focus, false)
	declared := ""
	if d.Type_.Text != "" {
		var ok bool
		if declared, ok = columnType(c.model, d.Type_.Text); !ok {
			c.fault(at+".type", "there is no type %q", outcome.Clip(d.Type_.Text))
			declared = ""
		}
	}
	if p != nil {
		switch {
		case declared != "":
			if !canBe(p.Shape(), declared) {
				c.fault(at+".type", "the column has the type %s, its path gives %s", declared, p.Shape().Describe())
			}
			column.Type = declared
		case d.Type_.Text == "":
			var ok bool
			if column.Type, ok = inferType(p.Shape()); !ok {
				c.fault(at+".type", "the path gives %s: a column of no primitive type declares its type", p.Shape().Describe())
			}
		}
	}
	column.Kind = primitiveKind(column.Type)
	sql, tag, err := tagType(d)
	if err != nil {
		c.fault(fmt.Sprintf("%s.tag[%d]", at, tag), "%v", err)
	}
	column.SQL = sql
	f := field{column: len(c.view.Columns), program: p}
	if e != nil {
		v, ok := e.Root.(*fhirpath.Variable)
		f.index = ok && v.Name == "rowIndex"
	}
	s.fields = append(s.fields, f)
	c.view.Columns = append(c.view.Columns, column)
}

// union compiles the branches of unionAll, which have the same columns.
func (c *compiler) union(at string, list []r4.ViewDefinitionSelect, focus fhirpath.Shape) []*selection {
	first := len(c.view.Columns)
	before := make(map[string]bool, len(c.names))
	for name := range c.names {
		before[name] = true
	}
	var out []*selection
	var columns []Column
	for i := range list {
		c.view.Columns = c.view.Columns[:first]
		c.names = make(map[string]bool, len(before))
		for name := range before {
			c.names[name] = true
		}
		branch := fmt.Sprintf("%s[%d]", at, i)
		faults := len(c.issues)
		s := c.selection(branch, &list[i], focus)
		own := slices.Clone(c.view.Columns[first:])
		out = append(out, s)
		if i == 0 {
			columns = own
			continue
		}
		if len(c.issues) > faults {
			continue
		}
		if reason := differ(columns, own); reason != "" {
			c.fault(branch, "the branches of unionAll have the same columns: %s", reason)
		}
	}
	c.view.Columns = append(c.view.Columns[:first], columns...)
	return out
}

// differ reports how the columns of two branches differ; "" where they are the same.
func differ(a, b []Column) string {
	names := func(list []Column) string {
		var out []string
		for i := range list {
			out = append(out, list[i].Name)
		}
		return strings.Join(out, ", ")
	}
	if names(a) != names(b) {
		return fmt.Sprintf("the first has %s, this one %s", names(a), names(b))
	}
	for i := range a {
		switch {
		case a[i].Collection != b[i].Collection:
			return fmt.Sprintf("collection of %s differs", a[i].Name)
		case a[i].Kind != b[i].Kind || a[i].Kind == Complex && a[i].Type != b[i].Type:
			return fmt.Sprintf("%s is %s in the first and %s in this one", a[i].Name, a[i].Type, b[i].Type)
		case sqlText(a[i].SQL) != sqlText(b[i].SQL):
			return fmt.Sprintf("ansi/type of %s differs", a[i].Name)
		}
	}
	return ""
}

func sqlText(t *SQLType) string {
	if t == nil {
		return ""
	}
	return fmt.Sprintf("%s(%d,%d)", t.Name, t.Precision, t.Scale)
}
