package postgres

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// account is the user that PostgreSQL runs as, which refuses to be root. A nil
// account is this process's own.
type account struct {
	uid, gid uint32
	// reach lets the process enter folders that lead to the data and are closed
	// to its user, such as /root.
	reach bool
}

// unprivileged returns the account to run as on a folder: postgres when this is
// root, else nobody.
func unprivileged(folder string) (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("user %s: %w", name, err)
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("user %s: %w", name, err)
		}
		a := &account{uid: uint32(uid), gid: uint32(gid)}
		a.reach = !a.canEnter(filepath.Dir(folder))
		return a, nil
	}
	return nil, errors.New("PostgreSQL does not run as root, and there is neither a user postgres nor nobody to run it as")
}

// canEnter reports whether every folder down to dir may be entered.
func (a *account) canEnter(dir string) bool {
	for ; ; dir = filepath.Dir(dir) {
		var st unix.Stat_t
		if unix.Stat(dir, &st) != nil {
			return false
		}
		enter := uint32(0o001)
		switch {
		case st.Uid == a.uid:
			enter = 0o100
		case st.Gid == a.gid:
			enter = 0o010
		}
		if st.Mode&enter == 0 {
			return false
		}
		if dir == filepath.Dir(dir) {
			return true
		}
	}
}

// own gives a file to the account.
func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	return os.Lchown(path, int(a.uid), int(a.gid))
}

// apply makes cmd run as the account, in a folder that it can enter, out of reach
// of the terminal's signals, and end in good order when this process does.
func (a *account) apply(cmd *exec.Cmd, folder string) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGINT}
	// With this variable PostgreSQL reports READY=1 to systemd before the server is ready.
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "NOTIFY_SOCKET=") }), "LC_ALL=C", "PGOPTIONS=")
	cmd.Dir = folder
	if a == nil {
		return
	}
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	if a.reach {
		cmd.Dir = "/" // the capability counts from the exec on, not for this chdir
		cmd.SysProcAttr.AmbientCaps = []uintptr{unix.CAP_DAC_OVERRIDE}
	}
}

// runs reports whether the process is a PostgreSQL on the data directory: numbers
// are used again.
func (p postmaster) runs(dir string) bool {
	if p.pid <= 0 {
		return false
	}
	cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", p.pid))
	if err != nil {
		return false
	}
	real, err := filepath.EvalSymlinks(dir)
	return err == nil && cwd == real
}

const canSync = true

// syncDir writes everything on the folder's file system to the disk.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}

func physicalMemory() int {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 1 << 30
	}
	return int(info.Totalram) * int(info.Unit)
}
