package conformance

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// parts are the parts of docs/contract.md that have a table of tests in promises,
// by the name of the file. A part that is whole has a table of each of its sections;
// of another one the sections that its file has are checked.
var parts = []struct {
	file, heading string
	whole         bool
}{
	{"authorization", "Authorization", true},
	{"notifications", "Notifications", true},
	{"apps", "Apps", true},
	{"operations", "Operations", true},
	{"bulk", "Bulk data", true},
	{"console", "Console", true},
}

// server/conformance/promises/*.md: each sentence of a bullet, paragraph or row of these parts of the
// contract has a row; each row is words of the contract and names tests that exist.
//
// A row's first cell is words of one bullet, in which … stands for words left out; it
// shows the sentences that its words are of. Its second cell names, in backticks, tests
// (`TestX`, `TestX/case`, `folder.TestX` where several packages have the name) and rows
// of the benchmark (`bench: row`). A sentence that promises nothing by itself has — and
// the reason there.
func TestPromisesHaveTests(t *testing.T) {
	t.Parallel()
	contract, err := os.ReadFile("../../docs/contract.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := testsOfTree(t, "../..")
	for _, part := range parts {
		t.Run(part.file, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(filepath.Join("promises", part.file+".md"))
			if os.IsNotExist(err) && !part.whole {
				t.Skip("no table yet")
			} else if err != nil {
				t.Fatal(err)
			}
			promised := sectionsBelow(string(contract), "## "+part.heading, "### ")
			shown := sectionsBelow(string(text), "# ", "## ")
			if len(promised) == 0 || len(shown) == 0 {
				t.Fatalf("the contract has %d sections of %s, server/conformance/promises/%s.md %d", len(promised), part.heading, part.file, len(shown))
			}
			if len(promised) > 1 { // an introduction promises nothing
				promised = promised[1:]
			} else { // a part of one section: its tables may stand under headings of their own
				for _, more := range shown[1:] {
					shown[0].lines = append(shown[0].lines, more.lines...)
				}
				shown = shown[:1]
			}
			names := func(sections []contractSection) []string {
				var out []string
				for _, s := range sections {
					out = append(out, s.heading)
				}
				return out
			}
			for _, s := range shown {
				if s.heading != "" && !slices.Contains(names(promised), s.heading) {
					t.Errorf("the contract has no section %q", s.heading)
				}
			}
			for _, p := range promised {
				i := slices.IndexFunc(shown, func(s contractSection) bool { return s.heading == p.heading })
				if i < 0 {
					if part.whole && len(p.bullets()) > 0 {
						t.Errorf("there is no table of section %q", p.heading)
					}
					continue
				}
				for _, problem := range compare(p, shown[i], tests) {
					t.Errorf("%s: %s", p.heading, problem)
				}
			}
		})
	}
}

// A contractSection contains the lines below a heading. Lines before the first heading of a part have the empty heading;
// a part without headings is one such section.
type contractSection struct {
	heading string
	lines   []string
}

// sectionsBelow are the sections of the part of a page that the heading begins.
func sectionsBelow(page, heading, mark string) []contractSection {
	lines := strings.Split(page, "\n")
	from := slices.IndexFunc(lines, func(l string) bool {
		return l == heading || strings.HasSuffix(heading, " ") && strings.HasPrefix(l, heading)
	})
	if from < 0 {
		return nil
	}
	level, _, _ := strings.Cut(heading, " ")
	out := []contractSection{{}}
	for _, l := range lines[from+1:] {
		if strings.HasPrefix(l, level+" ") {
			break
		}
		if name, ok := strings.CutPrefix(l, mark); ok {
			out = append(out, contractSection{heading: name})
			continue
		}
		out[len(out)-1].lines = append(out[len(out)-1].lines, l)
	}
	return out
}

// bullets are the bullets, paragraphs and table rows of a section, tables without their
// heads. The line that only introduces a table or a list is none.
func (s contractSection) bullets() []string {
	var out []string
	for i, l := range s.lines {
		next := ""
		for _, n := range s.lines[i+1:] {
			if next = strings.TrimSpace(n); next != "" {
				break
			}
		}
		switch {
		case strings.TrimSpace(l) == "", strings.HasPrefix(l, "|--"), strings.HasPrefix(l, "|") && strings.HasPrefix(next, "|--"):
		default:
			out = append(out, l)
		}
	}
	return out
}

// words is a text as it is compared: without marks of Markdown, spaces made one.
func words(text string) string {
	text = strings.NewReplacer(`\|`, "|", "`", "", "**", "").Replace(text)
	return strings.Join(strings.Fields(text), " ")
}

// sentenceEnd matches the end of a sentence or a clause of the contract: a stop or a semicolon before a space. A cell of a
// table ends one too.
var sentenceEnd = regexp.MustCompile(`[.;] | \| `)

// sentences are the places in words at which its sentences begin, and its length.
func sentences(words string) []int {
	at := []int{0}
	for _, m := range sentenceEnd.FindAllStringIndex(words, -1) {
		inside := strings.Count(words[:m[0]], "(") - strings.Count(words[:m[0]], ")")
		quoted := strings.Count(words[:m[0]], `{`) - strings.Count(words[:m[0]], `}`)
		if inside <= 0 && quoted <= 0 && !strings.HasSuffix(words[:m[0]], "e.g") {
			at = append(at, m[1])
		}
	}
	return append(at, len(words))
}

// compare are the differences between a section of the contract and its table: bullets
// and sentences without a row, rows that quote nothing, tests that do not exist.
func compare(promised, shown contractSection, tests *treeTests) (problems []string) {
	bullets := promised.bullets()
	covered := make([]map[int]bool, len(bullets)) // sentences with a row, by bullet
	for i := range covered {
		covered[i] = make(map[int]bool)
	}
	for _, row := range shown.bullets() {
		if !strings.HasPrefix(row, "|") {
			continue
		}
		cells := strings.Split(strings.ReplaceAll(strings.Trim(strings.TrimSpace(row), "|"), `\|`, "\x00"), " | ")
		if len(cells) != 2 {
			problems = append(problems, fmt.Sprintf("a row of %d cells: %s", len(cells), row))
			continue
		}
		promise := words(strings.ReplaceAll(cells[0], "\x00", "|"))
		found := false
		for i, b := range bullets {
			if quoted := quotes(words(b), promise); quoted != nil {
				found = true
				for _, s := range quoted {
					covered[i][s] = true
				}
			}
		}
		if !found {
			problems = append(problems, fmt.Sprintf("the section does not say %q", promise))
		}
		if reason := strings.TrimSpace(cells[1]); strings.HasPrefix(reason, "— ") && len(reason) > 10 {
			continue
		}
		named := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1)
		if len(named) == 0 {
			problems = append(problems, fmt.Sprintf("no test of %q", promise))
		}
		for _, n := range named {
			if err := tests.find(strings.ReplaceAll(n[1], "\x00", "|")); err != nil {
				problems = append(problems, fmt.Sprintf("%q: %v", promise, err))
			}
		}
	}
	for i, b := range bullets {
		text := words(b)
		at := sentences(text)
		for s := range len(at) - 1 {
			sentence := strings.Trim(text[at[s]:at[s+1]], "|-. ")
			if sentence != "" && !covered[i][s] {
				problems = append(problems, fmt.Sprintf("no row shows %q", sentence))
			}
		}
	}
	return problems
}

// quotes are the numbers of the sentences of a bullet from which a promise quotes words;
// nil where the bullet does not say all of its words, in their order.
func quotes(bullet, promise string) []int {
	at := sentences(bullet)
	var out []int
	from := 0
	for piece := range strings.SplitSeq(promise, "…") {
		piece = strings.Trim(piece, " ")
		if piece == "" {
			continue
		}
		i := strings.Index(bullet[from:], piece)
		if i < 0 {
			return nil
		}
		begin, end := from+i, from+i+len(piece)
		for s := range len(at) - 1 {
			if at[s] < end && begin < at[s+1] {
				out = append(out, s)
			}
		}
		from = end
	}
	return out
}

// treeTests are the tests of the tree: folders by name, and the texts in them, which
// are the names of their cases.
type treeTests struct {
	folders map[string][]string
	texts   map[string]map[string]bool // by folder
	bench   map[string]bool
}

func testsOfTree(t *testing.T, root string) *treeTests {
	t.Helper()
	out := &treeTests{folders: make(map[string][]string), texts: make(map[string]map[string]bool), bench: make(map[string]bool)}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		folder, _ := filepath.Rel(root, filepath.Dir(path))
		folder = filepath.ToSlash(folder)
		if d.IsDir() {
			if name := d.Name(); name == "gen" || name == "node_modules" || strings.HasPrefix(name, ".") && path != root {
				return filepath.SkipDir
			}
			return nil
		}
		if bench := folder == "tools/bench" && strings.HasSuffix(path, ".go"); !bench && !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if ok && f.Recv == nil && regexp.MustCompile(`^(Test|Fuzz|Benchmark)[A-Z]`).MatchString(f.Name.Name) {
				out.folders[f.Name.Name] = append(out.folders[f.Name.Name], folder)
			}
		}
		if out.texts[folder] == nil {
			out.texts[folder] = make(map[string]bool)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				text, _ := strconv.Unquote(l.Value)
				out.texts[folder][text] = true
				if folder == "tools/bench" {
					out.bench[text] = true
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// find fails where the tree has no such test, case or row of the benchmark.
func (s *treeTests) find(name string) error {
	if row, ok := strings.CutPrefix(name, "bench: "); ok {
		if !s.bench[row] {
			return fmt.Errorf("tools/bench has no row %q", row)
		}
		return nil
	}
	test, test2, isCase := strings.Cut(name, "/")
	folder := ""
	if i := strings.LastIndex(name, ".Test"); i > 0 {
		folder = name[:i]
		test, test2, isCase = strings.Cut(name[i+1:], "/")
	} else if i := strings.LastIndex(name, ".Fuzz"); i > 0 {
		folder = name[:i]
		test, test2, isCase = strings.Cut(name[i+1:], "/")
	}
	var in []string
	for _, f := range s.folders[test] {
		if folder == "" || f == folder || strings.HasSuffix(f, "/"+folder) {
			in = append(in, f)
		}
	}
	switch {
	case len(in) == 0:
		return fmt.Errorf("there is no test %s", name)
	case len(in) > 1:
		return fmt.Errorf("%s is a test of %s: say of which", name, strings.Join(in, ", "))
	case isCase && !s.texts[in[0]][test2]:
		return fmt.Errorf("%s has no case %q", test, test2)
	}
	return nil
}

// The check itself finds missing, misquoted and misnamed rows.
func TestPromisesCheck(t *testing.T) {
	t.Parallel()
	contract := "## Part\n\nIt begins.\n\n### 1. One\n- First (a. b) holds; second holds. Third: `x|y`.\n| A | B |\n|---|---|\n| `GET /a` | an answer |\n\n### 2. Two\n- Other.\n## Next\n- No part."
	tests := &treeTests{folders: map[string][]string{"TestA": {"server/a"}, "TestB": {"server/a", "server/b"}}, texts: map[string]map[string]bool{"server/a": {"case one": true}}, bench: map[string]bool{"row": true}}
	promised := sectionsBelow(contract, "## Part", "### ")
	if len(promised) != 3 || promised[2].heading != "2. Two" || len(promised[2].bullets()) != 1 {
		t.Fatalf("sections: %q", promised)
	}
	for _, c := range []struct{ name, rows, want string }{
		{"whole", "| First … second holds | `TestA`, `TestA/case one`, `bench: row` |\n| Third: `x\\|y` | `b.TestB` |\n| `GET /a` … an answer | — it is a table |", ""},
		{"no row of a sentence", "| First | `TestA` |\n| second holds. Third | `TestA` |\n| an answer | `TestA` |", `no row shows "GET /a"`},
		{"misquoted", "| First … Third | `TestA` |\n| second | `TestA` |\n| GET /a … an answer | `TestA` |\n| Fourth | `TestA` |", `the section does not say "Fourth"`},
		{"out of order", "| Third … First | `TestA` |\n| First … second … Third | `TestA` |\n| GET /a … an answer | `TestA` |", `the section does not say "Third … First"`},
		{"unknown test", "| First … second … Third | `TestC` |\n| GET /a … an answer | `TestA` |", `"First … second … Third": there is no test TestC`},
		{"unknown case", "| First … second … Third | `TestA/case two` |\n| GET /a … an answer | `TestA` |", `"First … second … Third": TestA has no case "case two"`},
		{"ambiguous test", "| First … second … Third | `TestB` |\n| GET /a … an answer | `TestA` |", `"First … second … Third": TestB is a test of server/a, server/b: say of which`},
		{"no test", "| First … second … Third | |\n| GET /a … an answer | `TestA` |", `no test of "First … second … Third"`},
		{"unknown row of the benchmark", "| First … second … Third | `bench: x` |\n| GET /a … an answer | `TestA` |", `"First … second … Third": tools/bench has no row "x"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			shown := sectionsBelow("# Tests\n\n## 1. One\n| Promise | Tests |\n|---|---|\n"+c.rows, "# ", "## ")
			if got := strings.Join(compare(promised[1], shown[1], tests), "\n"); got != c.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, c.want)
			}
		})
	}
}
