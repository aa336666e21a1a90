package codegen_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// Keys are hashes; keys of tokens, references and uris have 40 bits. Two branches with one key would find each
// other's resources.
func TestKeysOfTheDefinitionsDiffer(t *testing.T) {
	files, err := filepath.Glob("../gen/index/*.go")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)\((?:x, )?(0x[0-9a-f]+)\b.* // (\S.*)$`)
	branches := make(map[string]string)
	for _, name := range files {
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range line.FindAllStringSubmatch(string(source), -1) {
			if other, ok := branches[m[1]]; ok && other != m[2] {
				t.Errorf("%s is the key of %s and of %s", m[1], other, m[2])
			}
			branches[m[1]] = m[2]
		}
	}
	if len(branches) < 1000 {
		t.Errorf("only %d keys were found in gen/index", len(branches))
	}
}
