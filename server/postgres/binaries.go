package postgres

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const howToGet = "get it with `apt-get install -y postgresql`, or name a database with database.url (KILN_DATABASE__URL)"

// findBinaries returns the folder of initdb and postgres: the one that is set,
// else the first that has both among pg_config's, PATH's and the newest of a
// distribution's. Data that exists already wants its own major version.
func findBinaries(setting, dataDir string) (string, error) {
	if setting != "" {
		if !hasBinaries(setting) {
			return "", fmt.Errorf("%s has no initdb and postgres: %s", setting, howToGet)
		}
		return setting, nil
	}
	var candidates []string
	if out, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		candidates = append(candidates, strings.TrimSpace(string(out)))
	}
	if path, err := exec.LookPath("postgres"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			candidates = append(candidates, filepath.Dir(path))
		}
	}
	candidates = append(candidates, installed()...)
	candidates = slices.DeleteFunc(candidates, func(dir string) bool { return !hasBinaries(dir) })
	if len(candidates) == 0 {
		return "", fmt.Errorf("PostgreSQL is not installed: %s", howToGet)
	}
	wanted, err := os.ReadFile(filepath.Join(dataDir, "PG_VERSION"))
	if err != nil {
		return candidates[0], nil // no data yet
	}
	version := strings.TrimSpace(string(wanted))
	for _, dir := range candidates {
		if majorOf(dir) == version {
			return dir, nil
		}
	}
	return "", fmt.Errorf("the data in %s is of PostgreSQL %s, which is not installed: get it with `apt-get install -y postgresql-%s`", dataDir, version, version)
}

// installed returns where distributions put PostgreSQL, newest first.
func installed() []string {
	var dirs []string
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql*/bin", "/usr/local/pgsql/bin"} {
		found, _ := filepath.Glob(pattern) // the patterns are well formed
		slices.SortFunc(found, func(a, b string) int { return numberIn(b) - numberIn(a) })
		dirs = append(dirs, found...)
	}
	return dirs
}

func numberIn(path string) int {
	digits := strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return r
		}
		return -1
	}, path)
	n, _ := strconv.Atoi(digits) // none is 0
	return n
}

func hasBinaries(dir string) bool {
	for _, name := range []string{"initdb", "postgres"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			return false
		}
	}
	return true
}

// majorOf returns the major version of the binaries, as PG_VERSION has it.
func majorOf(dir string) string {
	out, err := exec.Command(filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return ""
	}
	// "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)", "… 18beta1"
	if fields := strings.Fields(string(out)); len(fields) > 2 {
		end := strings.IndexFunc(fields[2], func(r rune) bool { return r < '0' || r > '9' })
		if end < 0 {
			return fields[2]
		}
		return fields[2][:end]
	}
	return ""
}
