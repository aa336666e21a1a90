//go:build !linux

package postgres

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

type account struct{}

func unprivileged(string) (*account, error) {
	if os.Geteuid() == 0 {
		return nil, errors.New("PostgreSQL does not run as root: start the server as another user, or name a database with database.url")
	}
	return nil, nil
}

func (a *account) own(string) error { return nil }

func (a *account) apply(cmd *exec.Cmd, folder string) {
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Dir = folder
}

func (p postmaster) runs(string) bool { return p.pid > 0 && syscall.Kill(p.pid, 0) == nil }

// canSync says that syncDir does something; else initdb syncs by itself.
const canSync = false

func syncDir(string) error { return nil }

func physicalMemory() int { return 1 << 30 }
