package operate

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// labelPattern is the name of a table in a query.
var labelPattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}$`)

// scanned is SQL whose parameters are numbered.
type scanned struct {
	sql  string
	args []any
	// plain says that the SQL calls no function outside of harmlessCalls, and does not name the schema view.
	plain bool
}

// sqlTokens are the parts of SQL: comments, texts, quoted names, names, casts, parameters.
var sqlTokens = regexp.MustCompile(`(?s)--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|"(?:[^"]|"")*"|\$[A-Za-z_]*\$|[A-Za-z_\x80-\xff][A-Za-z0-9_$\x80-\xff]*|::|:[A-Za-z_][A-Za-z0-9_]*|.`)

// harmlessCalls are names before a bracket, keywords and functions, that can run no text as SQL and reach no other table.
var harmlessCalls = strings.Fields(`
	select from where and or not in exists any all some as on using over filter within group by values union intersect except case when then else end with is having join lateral between like ilike
	count sum avg min max coalesce nullif greatest least array_agg string_agg json_agg jsonb_agg bool_and bool_or every stddev variance percentile_cont percentile_disc mode
	row_number rank dense_rank lag lead first_value last_value ntile
	lower upper trim btrim ltrim rtrim length substring substr left right replace split_part concat concat_ws position starts_with
	abs round ceil floor mod power sqrt sign trunc extract date_part date_trunc age to_char to_date make_date now
	array unnest cardinality array_length jsonb_array_elements jsonb_array_elements_text jsonb_build_object json_build_object to_jsonb row cast
	numeric decimal varchar char integer date text`)

// scanSQL numbers the parameters :name of SQL, and looks for calls that are not harmless.
func scanSQL(text string, arguments map[string]argument) scanned {
	out := scanned{plain: true}
	numbers := make(map[string]int)
	var b strings.Builder
	tokens := sqlTokens.FindAllString(text, -1)
	for i, t := range tokens {
		next := ""
		for _, n := range tokens[i+1:] {
			if strings.TrimSpace(n) != "" && !strings.HasPrefix(n, "--") && !strings.HasPrefix(n, "/*") {
				next = n
				break
			}
		}
		first := t[0]
		switch {
		case first == ':' && len(t) > 1 && t != "::":
			name := t[1:]
			a, ok := arguments[name]
			if !ok {
				break
			}
			n, seen := numbers[name]
			if !seen {
				n = len(out.args) + 1
				numbers[name] = n
				out.args = append(out.args, a.value)
			}
			t = fmt.Sprintf("($%d::text)::%s", n, a.sqlType)
		case first == '"':
			out.plain = out.plain && !strings.EqualFold(t, `"view"`) && next != "("
		case first == '$', strings.Contains(t, "/*") && strings.Count(t, "/*") > 1:
			out.plain = false // quotes and comments that this scanner does not follow
		case first == '_' || first >= 'A' && first <= 'Z' || first >= 'a' && first <= 'z' || first >= 0x80:
			name := strings.ToLower(t)
			switch {
			case name == "view", strings.HasPrefix(next, "'") && len(name) <= 2, next == "&":
				out.plain = false // the schema of the tables; prefixed texts, such as E'…'
			case next == "(" && !slices.Contains(harmlessCalls, name):
				out.plain = false
			}
		}
		b.WriteString(t)
	}
	out.sql = b.String()
	return out
}
