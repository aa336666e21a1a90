package console

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"kiln/server/fhir"
	"kiln/server/interaction"
	"kiln/server/outcome"
)

// searchState is a search, as its address has it sealed.
type searchState struct {
	Type    string   `json:"t"`
	Query   string   `json:"q,omitempty"` // as it is written behind the question mark
	Columns []string `json:"c,omitempty"` // nil are those of the type
	Explain bool     `json:"e,omitempty"`
}

// searchAddress is the address of a search: one search has one address.
func (v *visit) searchAddress(s searchState) string {
	text, _ := json.Marshal(s) // strings and a bool always can
	return "/console/search/" + v.c.seal.seal("search", string(text))
}

// pair is a parameter of a query with its value, both plain.
type pair struct{ Name, Value string }

// splitQuery reads a query in its order. ok is false where a part has no meaning.
func splitQuery(query string) (list []pair, ok bool) {
	for part := range strings.SplitSeq(query, "&") {
		if part == "" {
			continue
		}
		name, value, _ := strings.Cut(part, "=")
		n, err := url.QueryUnescape(name)
		x, err2 := url.QueryUnescape(value)
		if err != nil || err2 != nil || n == "" {
			return nil, false
		}
		list = append(list, pair{n, x})
	}
	return list, true
}

// queryEscape leaves readable what needs no escape in a query.
var queryUnescape = strings.NewReplacer("%2C", ",", "%3A", ":", "%2F", "/", "%7C", "|", "%24", "$", "%40", "@")

func joinQuery(list []pair) string {
	var b strings.Builder
	for i, p := range list {
		if i > 0 {
			b.WriteByte('&')
		}
		b.WriteString(queryUnescape.Replace(url.QueryEscape(p.Name)) + "=" + queryUnescape.Replace(url.QueryEscape(p.Value)))
	}
	return b.String()
}

// control reports whether a parameter is about the page and no condition.
func control(name string) bool {
	switch name {
	case "_sort", "_count", "_offset", "_cursor", "_total", "_summary", "_elements", "_explain", "_format", "_pretty":
		return true
	}
	return false
}

// paging reports whether a parameter is about which page it is.
func paging(name string) bool { return name == "_offset" || name == "_cursor" }

// searchType is the search page of a type without conditions.
func (v *visit) searchType(parts []string) error {
	if v.c.Service.Model.Resources[parts[0]] == nil {
		return errNoPage
	}
	return v.search(searchState{Type: parts[0]})
}

// searchSealed is the search page of an address.
func (v *visit) searchSealed(parts []string) error {
	text, ok := v.c.seal.open("search", parts[0])
	var s searchState
	if !ok || json.Unmarshal([]byte(text), &s) != nil || v.c.Service.Model.Resources[s.Type] == nil {
		return errNoPage
	}
	return v.search(s)
}

// changeSearch takes the forms of the search page: a query, a condition more or less, other columns.
func (v *visit) changeSearch(_ []string) error {
	s := searchState{Type: v.form.Get("type"), Query: strings.TrimPrefix(strings.TrimSpace(v.form.Get("query")), "?"), Columns: v.form["columns"]}
	if v.c.Service.Model.Resources[s.Type] == nil {
		return errNoPage
	}
	if v.form.Get("action") != "columns" {
		s.Columns = slices.DeleteFunc(strings.Split(v.form.Get("shown"), ","), func(c string) bool { return c == "" })
	}
	list, ok := splitQuery(s.Query)
	switch v.form.Get("action") {
	case "add":
		name, comparison, value := v.form.Get("parameter"), v.form.Get("comparison"), v.form.Get("value")
		if name == "" || value == "" {
			break
		}
		if strings.HasPrefix(comparison, ":") {
			name += comparison
		} else {
			value = comparison + value
		}
		list = append(slices.DeleteFunc(list, func(p pair) bool { return paging(p.Name) }), pair{name, value})
		s.Query = joinQuery(list)
	case "remove":
		removed := v.form.Get("name") + "=" + v.form.Get("condition")
		done := false
		list = slices.DeleteFunc(list, func(p pair) bool {
			if paging(p.Name) {
				return true
			}
			if !done && p.Name+"="+p.Value == removed {
				done = true
				return true
			}
			return false
		})
		s.Query = joinQuery(list)
	case "columns":
		if len(s.Columns) == 0 {
			s.Columns = []string{"Id"}
		}
	default:
		if ok {
			s.Query = joinQuery(list)
		}
	}
	if slices.Equal(s.Columns, v.typeColumns(s.Type)) {
		s.Columns = nil
	}
	if s.Query == "" && s.Columns == nil {
		v.redirect("/console/resources/" + s.Type)
		return nil
	}
	v.redirect(v.searchAddress(s))
	return nil
}

// goTo answers the search form of the banner: Type, Type/id, Type?query, else patients by name or identifier.
func (v *visit) goTo(_ []string) error {
	text := strings.TrimSpace(v.form.Get("goto"))
	text = strings.TrimPrefix(strings.TrimPrefix(text, "/fhir"), "/")
	isType := func(name string) bool { return v.c.Service.Model.Resources[name] != nil }
	if typ, query, ok := strings.Cut(text, "?"); ok && isType(typ) {
		v.redirect(v.searchAddress(searchState{Type: typ, Query: normalizeQuery(query)}))
		return nil
	}
	if typ, id, ok := strings.Cut(text, "/"); ok && isType(typ) && fhir.ValidID(id) {
		v.redirect("/console/" + typ + "/" + id)
		return nil
	}
	switch {
	case text == "":
		v.redirect("/console/resources")
		return nil
	case isType(text):
		v.redirect("/console/resources/" + text)
		return nil
	}
	by := []pair{{"identifier", searchEscape.Replace(text)}}
	n, err := v.count(v.ctx(), "Patient", url.Values{"identifier": {by[0].Value}})
	if err != nil && !outcome.Is(err, outcome.CodeInvalid) {
		if _, known := outcome.From(err); !known {
			return err
		}
	}
	if n <= 0 {
		by = nil
		for _, word := range strings.Fields(text) {
			by = append(by, pair{"name", searchEscape.Replace(word)})
		}
	}
	v.redirect(v.searchAddress(searchState{Type: "Patient", Query: joinQuery(by)}))
	return nil
}

// normalizeQuery writes a query as the console writes it. What cannot be read stays.
func normalizeQuery(query string) string {
	if list, ok := splitQuery(query); ok {
		return joinQuery(list)
	}
	return query
}

// searchEscape writes a text as one value of a search parameter.
// Spec: https://hl7.org/fhir/R4/search.html#escaping.
var searchEscape = strings.NewReplacer(`\`, `\\`, `,`, `\,`, `$`, `\$`, `|`, `\|`)

// searchBundle is the part of a searchset that a page reads.
type searchBundle struct {
	Total *int64
	Link  []struct{ Relation, URL string }
	Entry []struct {
		Resource json.RawMessage
		Search   struct{ Mode string }
	}
}

// option is an option of a select.
type option struct {
	Value, Label, Type string
	Types              string // of parameters, for a comparison; "" is all
	Chosen             bool
}

// comparisons are the modifiers and prefixes of search parameters by their type.
// Spec: https://hl7.org/fhir/R4/search.html#modifiers, #prefix.
var comparisons = []struct{ value, label, types string }{
	{"", "is", ""}, {":exact", "is exactly", "string"}, {":contains", "contains", "string uri"}, {":not", "is not", "token"}, {":text", "has the text", "token"},
	{":in", "is in the value set", "token"}, {":not-in", "is not in the value set", "token"}, {":below", "is below", "token uri reference"}, {":above", "is above", "token uri reference"},
	{"ge", "is at least", "date number quantity"}, {"gt", "is greater than", "date number quantity"}, {"le", "is at most", "date number quantity"},
	{"lt", "is less than", "date number quantity"}, {"ne", "is not equal to", "date number quantity"}, {"sa", "starts after", "date number quantity"},
	{"eb", "ends before", "date number quantity"}, {"ap", "is about", "date number quantity"},
	{":identifier", "has the identifier", "reference"}, {":missing", "is missing (true or false)", ""},
}

// searchPage is the data of the search page.
type searchPage struct {
	Type, Query, Shown, New, Suggest string
	Parameters, Comparisons          []option
	Columns                          []option
	Conditions                       []button
	Count                            string // "1,768 results"
	Results                          table
	Previous, Next, Explain          string // addresses
	Explanation                      string
}

// search shows a search with its results.
func (v *visit) search(s searchState) error {
	p := searchPage{Type: s.Type, New: "/console/" + s.Type + "/new", Suggest: "/console/suggest/" + s.Type}
	list, ok := splitQuery(s.Query)
	var shown []pair
	counted := false
	for _, x := range list {
		counted = counted || x.Name == "_total" || x.Name == "_summary"
		if paging(x.Name) {
			continue
		}
		shown = append(shown, x)
		if !control(x.Name) {
			remove := v.post(v.T("Remove %s", x.Name+"="+x.Value), "/console/search", "type", s.Type, "query", joinQuery(list), "shown", strings.Join(s.Columns, ","), "action", "remove", "name", x.Name, "condition", x.Value)
			p.Conditions = append(p.Conditions, remove)
		}
	}
	if p.Query = joinQuery(shown); !ok {
		p.Query = s.Query
	}
	p.Shown = strings.Join(s.Columns, ",")
	v.fillBuilder(&p, s)

	query := s.Query
	extra := []string{}
	if !counted {
		extra = append(extra, "_total=accurate")
	}
	if s.Explain {
		extra = append(extra, "_explain=true")
	}
	target := "/" + s.Type + "?" + strings.Trim(query+"&"+strings.Join(extra, "&"), "&")
	a := v.call(http.MethodGet, target, nil)
	if err := v.refuse(a.err()); err != nil {
		return err
	}
	if a.ok() {
		var b searchBundle
		if err := json.Unmarshal(a.Bytes(), &b); err != nil {
			return err
		}
		if err := v.fillResults(&p, s, list, &b); err != nil {
			return err
		}
	}
	return v.show("search", v.T("Search %s", s.Type), "", p)
}

// fillBuilder fills the form that adds a condition.
func (v *visit) fillBuilder(p *searchPage, s searchState) {
	var all []*fhir.Parameter
	for _, x := range v.c.Registry().Parameters(s.Type) {
		if x.Unsupported == "" && x.Type != fhir.SearchComposite && x.Type != fhir.SearchSpecial {
			all = append(all, x)
		}
	}
	slices.SortFunc(all, func(a, b *fhir.Parameter) int { // those of all types last
		return strings.Compare(strings.ReplaceAll(a.Code, "_", "~"), strings.ReplaceAll(b.Code, "_", "~"))
	})
	for _, x := range all {
		p.Parameters = append(p.Parameters, option{Value: x.Code, Label: x.Code, Type: string(x.Type)})
	}
	for _, c := range comparisons {
		label := v.T(c.label)
		if c.value != "" {
			label += " (" + c.value + ")"
		}
		p.Comparisons = append(p.Comparisons, option{Value: c.value, Label: label, Types: c.types})
	}
	chosen := s.Columns
	if chosen == nil {
		chosen = v.typeColumns(s.Type)
	}
	for _, name := range v.possibleColumns(s.Type) {
		p.Columns = append(p.Columns, option{Value: name, Label: v.T(name), Chosen: slices.Contains(chosen, name)})
	}
}

// fillResults fills the table, the total, and the links to other pages.
func (v *visit) fillResults(p *searchPage, s searchState, list []pair, b *searchBundle) error {
	chosen := s.Columns
	if chosen == nil {
		chosen = v.typeColumns(s.Type)
	}
	sort := ""
	for _, x := range list {
		if x.Name == "_sort" {
			sort, _, _ = strings.Cut(x.Value, ",")
		}
	}
	head := []column{v.sortColumn(s, list, "Id", sort)}
	for _, name := range chosen {
		if name != "Id" {
			head = append(head, v.sortColumn(s, list, name, sort))
		}
	}
	p.Results = table{Name: v.T("Results"), Head: append(head, v.sortColumn(s, list, "Last updated", sort)), Empty: v.T("Nothing matches.")}
	included, explained := 0, ""
	for _, e := range b.Entry {
		switch e.Search.Mode {
		case "include":
			included++
			continue
		case "outcome":
			for _, i := range issuesOf(e.Resource) {
				explained += i.Diagnostics + "\n"
			}
			continue
		}
		n, err := parseTree(e.Resource)
		if err != nil {
			return err
		}
		row := []cell{linkCell(n.str("id"), "/console/"+n.str("resourceType")+"/"+escape(n.str("id")))}
		for _, name := range chosen {
			if name != "Id" {
				row = append(row, columnValue(n, name))
			}
		}
		p.Results.Rows = append(p.Results.Rows, append(row, cell{Text: n.str("meta", "lastUpdated"), Class: "date"}))
	}
	switch {
	case b.Total == nil:
	case *b.Total == 1:
		p.Count = v.T("1 result")
	default:
		p.Count = v.T("%s results", formatNumber(v.Language, *b.Total))
	}
	if included > 0 {
		p.Results.More = v.plural(int64(included), "1 included resource is not shown.", "%s included resources are not shown.")
	}
	for _, l := range b.Link {
		_, query, found := strings.Cut(l.URL, "?")
		if !found {
			continue
		}
		to := s
		pairs, _ := splitQuery(query)
		to.Query = joinQuery(slices.DeleteFunc(pairs, func(x pair) bool { return x.Name == "_explain" || x.Name == "_total" && !slices.Contains(list, x) }))
		switch l.Relation {
		case "next":
			p.Next = v.searchAddress(to)
		case "previous", "prev":
			p.Previous = v.searchAddress(to)
		}
	}
	if v.c.Settings().Explain && v.principal.IsOpen() { // a search with somebody's rights explains nothing
		to := s
		to.Explain = true
		p.Explain = v.searchAddress(to)
		if s.Explain {
			p.Explanation = strings.TrimSpace(explained)
		}
	}
	return nil
}

// sortColumn is the head of a column, with the address that sorts by it.
func (v *visit) sortColumn(s searchState, list []pair, name, now string) column {
	c := column{Text: v.T(name)}
	by := v.sortParameter(s.Type, name)
	if by == "" {
		return c
	}
	descending := name == "Value" || name == "Date" || name == "Last updated" // the most telling first
	switch now {
	case by:
		c.Sort, descending = "ascending", true
	case "-" + by:
		c.Sort, descending = "descending", false
	}
	if descending {
		by = "-" + by
	}
	to := s
	to.Query = joinQuery(append(slices.DeleteFunc(slices.Clone(list), func(p pair) bool { return p.Name == "_sort" || paging(p.Name) }), pair{"_sort", by}))
	c.Link = v.searchAddress(to)
	return c
}

// suggestion is a value for a condition.
type suggestion struct {
	Value string `json:"value"`
	Label string `json:"label"`
}

// maxSuggestions bounds a list of suggestions.
const maxSuggestions = 20

// suggest answers values for a parameter: codes of its value set, and codes of resources that the person may see.
func (v *visit) suggest(parts []string) error {
	typ, code, text := parts[0], v.form.Get("parameter"), strings.ToLower(v.form.Get("value"))
	parameter, ok := v.c.Registry().Lookup(typ, code)
	if !ok || v.c.Service.Model.Resources[typ] == nil {
		return errNoPage
	}
	out := []suggestion{}
	seen := make(map[string]bool)
	add := func(value, label string) {
		if value == "" || seen[value] || len(out) >= maxSuggestions || !strings.Contains(strings.ToLower(value+" "+label), text) {
			return
		}
		seen[value] = true
		out = append(out, suggestion{value, label})
	}
	paths := simplePaths(parameter.Expression, typ)
	if parameter.Type == fhir.SearchToken {
		v.suggestDefined(typ, paths, v.form.Get("value"), add)
	}
	if err := v.suggestVisible(typ, paths, parameter.Type, add); err != nil {
		return err
	}
	v.screen = "suggest"
	v.x.SendJSON(v.r, http.StatusOK, out)
	return nil
}

// simplePaths are the branches of an expression that are plain paths: Observation.code gives code.
func simplePaths(expression, typ string) [][]string {
	var out [][]string
	for branch := range strings.SplitSeq(expression, "|") {
		branch = strings.Trim(strings.TrimSpace(branch), "()")
		if rest, ok := strings.CutPrefix(branch, typ+"."); ok {
			rest, _, _ = strings.Cut(rest, " as ")
			rest, _, _ = strings.Cut(rest, ".as(")
			rest, _, _ = strings.Cut(rest, ".where(")
			out = append(out, strings.Split(strings.TrimSpace(rest), "."))
		}
	}
	return out
}

// suggestDefined suggests codes of the value set that the element is bound to.
func (v *visit) suggestDefined(typ string, paths [][]string, text string, add func(value, label string)) {
	for _, path := range paths {
		t := v.c.Service.Model.Resources[typ].Type()
		var field *fhir.Field
		for i, name := range path {
			if field = t.Field(name); field == nil || field.Of == nil && i < len(path)-1 {
				break
			}
			if field.Of != nil {
				t = field.Of.Type()
			}
		}
		if field == nil || field.Binding.ValueSet == "" || field.Binding.Strength == "example" {
			continue
		}
		var set struct {
			Expansion struct {
				Contains []struct{ System, Code, Display string }
			}
		}
		target := "/ValueSet/$expand?" + url.Values{"url": {field.Binding.ValueSet}, "filter": {text}, "count": {"20"}}.Encode()
		if text == "" {
			target = "/ValueSet/$expand?" + url.Values{"url": {field.Binding.ValueSet}, "count": {"20"}}.Encode()
		}
		if v.get(target, &set) != nil {
			continue // a suggestion is a help, and its absence no error
		}
		for _, c := range set.Expansion.Contains {
			add(c.Code, c.Display)
		}
	}
}

// suggestVisible suggests values of the newest resources that the person may see.
func (v *visit) suggestVisible(typ string, paths [][]string, kind fhir.SearchType, add func(value, label string)) error {
	if kind != fhir.SearchToken && kind != fhir.SearchReference {
		return nil
	}
	answer, err := v.c.Service.Search(v.ctx(), interaction.SearchParams{ResourceType: typ, Values: url.Values{"_count": {"200"}, "_sort": {"-_lastUpdated"}, "_total": {"none"}}})
	if _, known := outcome.From(err); known {
		return nil //nolint:nilerr // what the person may not search gives no suggestion
	}
	if err != nil {
		return err
	}
	defer answer.Release()
	for _, e := range answer.Bundle.Entries {
		if e.Mode != "match" {
			continue
		}
		n, err := parseTree(e.Version.Body)
		if err != nil {
			continue
		}
		for _, path := range paths {
			for _, x := range n.collect(path) {
				switch {
				case x.kind == 'v':
					add(x.text, "")
				case x.get("reference") != nil:
					add(x.str("reference"), x.str("display"))
				case x.get("coding") != nil:
					for _, c := range x.get("coding").items() {
						add(c.str("code"), c.str("display"))
					}
				case x.get("code") != nil:
					add(x.str("code"), x.str("display"))
				case x.get("value") != nil:
					add(x.str("value"), x.str("system"))
				}
			}
		}
	}
	return nil
}

// collect returns the values at a path, of every item of a list.
func (n *node) collect(path []string) []*node {
	list := n.items()
	for _, name := range path {
		var next []*node
		for _, x := range list {
			next = append(next, x.get(name).items()...)
		}
		list = next
	}
	return list
}
