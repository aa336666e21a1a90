package oauth_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Contract, Authorization 1: oauth knows FHIR only through a small interface
// (oauth.Records): none of its packages imports one that reads, searches or stores
// resources. server/access knows neither HTTP nor the database.
func TestImports(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		folder  string
		allowed []string // packages of this module
		refused []string // beginnings of other packages
	}{
		{"../oauth", []string{"kiln/oauth", "kiln/oauth/pages", "kiln/server/smart", "kiln/oauth/storage", "kiln/gen/db",
			"kiln/server/access", "kiln/server/outbound", "kiln/server/outcome", "kiln/server/telemetry", "kiln/server/web"}, nil},
		{"../server/access", []string{"kiln/server/smart", "kiln/server/fhir", "kiln/server/outcome", "kiln/server/search", "kiln/server/search/match"},
			[]string{"github.com/jackc", "net/http", "database/sql"}},
	} {
		err := filepath.WalkDir(tt.folder, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
			if err != nil {
				return err
			}
			for _, i := range file.Imports {
				name, _ := strconv.Unquote(i.Path.Value)
				if strings.HasPrefix(name, "kiln/") && !slices.Contains(tt.allowed, name) {
					t.Errorf("%s imports %s", path, name)
				}
				if name == "kiln/gen/db" && !strings.HasPrefix(filepath.ToSlash(path), "../oauth/storage/") {
					t.Errorf("%s imports the queries; only oauth/storage does", path)
				}
				if slices.ContainsFunc(tt.refused, func(r string) bool { return strings.HasPrefix(name, r) }) {
					t.Errorf("%s imports %s", path, name)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
