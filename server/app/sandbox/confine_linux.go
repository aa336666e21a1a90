package sandbox

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Supported reports whether this platform can hold a script.
const Supported = true

// nobody is the user and the group that a worker of root becomes.
const nobody = 65534

// confineProcess drops privileges, files, and memory beyond the process's present size and twice memory, in bytes.
func confineProcess(memory int64) error {
	if os.Getuid() == 0 {
		if err := syscall.Setgroups(nil); err != nil {
			return err
		}
		if err := syscall.Setresgid(nobody, nobody, nobody); err != nil {
			return err
		}
		if err := syscall.Setresuid(nobody, nobody, nobody); err != nil {
			return err
		}
		// A change of user takes it away.
		if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0, 0, 0); err != nil {
			return err
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	runtime.GC()
	var pages int64
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return err
	}
	if _, err := fmt.Sscan(string(b), &pages); err != nil {
		return err
	}
	size := uint64(pages)*uint64(os.Getpagesize()) + 2*uint64(memory)
	for _, l := range []struct {
		what  int
		limit uint64
	}{{unix.RLIMIT_AS, size}, {unix.RLIMIT_CORE, 0}, {unix.RLIMIT_FSIZE, 0}, {unix.RLIMIT_NOFILE, 16}} {
		if err := unix.Setrlimit(l.what, &unix.Rlimit{Cur: l.limit, Max: l.limit}); err != nil {
			return err
		}
	}
	return nil
}

// niceness is the priority of a worker's threads: it leaves about nine tenths of a contested processor to the threads of
// requests. slice is the time in nanoseconds that such a thread may continue when another wants its processor: the
// smallest value of Linux. Before 6.12 all threads have the same slice.
const (
	niceness = 10
	slice    = 100_000
)

// comeBehind gives the present thread, and its children, a lower priority than the threads of requests.
// sched_setattr(2), setpriority(2).
func comeBehind() error {
	now, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0) // 20 less the niceness
	if err != nil {
		return err
	}
	nice := max(niceness, 20-now)
	if unix.SchedSetAttr(0, &unix.SchedAttr{Policy: unix.SCHED_NORMAL, Nice: int32(nice), Runtime: slice}, 0) == nil {
		return nil
	}
	return syscall.Setpriority(syscall.PRIO_PROCESS, 0, nice)
}

// lowerPriority has every thread of this process come behind all others: the process is a group of its
// own. setpriority(2).
func lowerPriority() { _ = syscall.Setpriority(syscall.PRIO_PGRP, 0, 19) }

// processorTime is the time that this process has had of processors. getrusage(2).
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// processAttributes returns the attributes of a worker: it ends with the thread that started it, in a group of its own
// and, with isolate, without network.
func processAttributes(isolate bool) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if isolate && os.Getuid() == 0 {
		a.Unshareflags = syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC
	}
	return a
}
