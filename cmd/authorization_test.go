package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"kiln/server/store/storetest"
)

// Every command of the guide works: docs/authorization.md.
func TestAuthorizationGuide(t *testing.T) {
	database := storetest.New(t)
	guide, err := os.ReadFile("../docs/authorization.md")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "kiln")
	if out, err := exec.Command("go", "build", "-trimpath", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(guide), -1)
	if len(blocks) < 5 {
		t.Fatalf("the guide has %d blocks of commands", len(blocks))
	}
	for _, block := range blocks {
		for _, command := range strings.Split(strings.ReplaceAll(block[1], "\\\n", " "), "\n") {
			if strings.TrimSpace(command) == "" {
				continue
			}
			c := exec.Command("bash", "-c", strings.Replace(command, "kiln ", "\""+program+"\" ", 1))
			c.Env = append(os.Environ(), "KILN_DATABASE__URL="+database)
			var out, problem bytes.Buffer
			c.Stdout, c.Stderr = &out, &problem
			if err := c.Run(); err != nil {
				t.Errorf("%s: %v\n%s", command, err, problem.String())
				continue
			}
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			last := lines[len(lines)-1]
			switch {
			case strings.Contains(command, "apikey create") && !strings.HasPrefix(last, "kiln_"),
				strings.Contains(command, "token mint") && strings.Count(last, ".") != 2,
				strings.Contains(command, "user create") && len(last) < 12:
				t.Errorf("%s: the last line is %q", command, last)
			}
		}
	}
}
