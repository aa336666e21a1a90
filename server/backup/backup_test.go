package backup

import (
	"errors"
	"os/exec"
	"syscall"
	"testing"

	"kiln/server/store/storetest"
)

// Contract, Operations: what other users of the machine can see of a running pg_dump has no password.
func TestWithoutPassword(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ connection, want, wantPassword string }{
		{"postgres://kiln:p%40ss@db:5433/k?sslmode=require", "postgres://kiln@db:5433/k?sslmode=require", "p@ss"},
		{"postgresql://kiln@db/k", "postgresql://kiln@db/k", ""},
		{"postgres:///k?host=/run/x&user=u", "postgres:///k?host=/run/x&user=u", ""},
		{"postgres:///k?password=a%20b&options=-c%20x%3D1", "postgres:///k?options=-c%20x%3D1", "a b"},
		{"host=db user=kiln password=secret dbname=k", "host=db user=kiln dbname=k", "secret"},
		{"host = db password = 'it'", "host=db", "it"},
		{`password='a \'b\\' host=db options='-c x=1 password=2'`, `host=db options='-c x=1 password=2'`, `a 'b\`},
		{`host=db password=a\ b`, "host=db", "a b"},
		{"", "", ""},
	} {
		rest, password := withoutPassword(test.connection)
		if rest != test.want || password != test.wantPassword {
			t.Errorf("%s: %q and %q, want %q and %q", test.connection, rest, password, test.want, test.wantPassword)
		}
	}
}

// full is a disk without space.
type full struct{ room int }

func (f *full) Write(p []byte) (int, error) {
	if f.room -= len(p); f.room < 0 {
		return 0, syscall.ENOSPC
	}
	return len(p), nil
}

// A backup that has no room says so, and not how pg_dump ended.
func TestWriteWithoutSpace(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("pg_dump"); err != nil {
		t.Skip(err)
	}
	url := storetest.New(t)
	for _, room := range []int{0, 100, 20_000} {
		if _, err := Write(t.Context(), url, "test", &full{room}); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("with room for %d bytes: %v", room, err)
		}
	}
}
