package sandbox

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A script takes no processor from requests: every thread of a worker is nice, those that it
// has started since too.
func TestScriptsComeBehindRequests(t *testing.T) {
	t.Parallel()
	p := pool(t, 5*time.Second)
	if _, err := p.Run(t.Context(), &Call{Code: "() => { const a = []; for (let i = 0; i < 200000; i++) a.push({i}); return a.length }"}); err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	pid := p.idle[0].command.Process.Pid
	p.mu.Unlock()
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil || len(threads) < 2 {
		t.Fatalf("%d threads, %v", len(threads), err)
	}
	for _, thread := range threads {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/stat", pid, thread.Name()))
		if os.IsNotExist(err) || errors.Is(err, syscall.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			t.Fatal(err)
		}
		if id, err := strconv.Atoi(thread.Name()); err == nil {
			// Before Linux 6.12 no slice is told.
			if a, err := unix.SchedGetAttr(id, 0); err == nil && a.Runtime != 0 && a.Runtime != slice {
				t.Errorf("thread %s goes on for %d ns, want %d", thread.Name(), a.Runtime, slice)
			}
		}
		// proc_pid_stat(5): behind the name in parentheses nice is the 17th field.
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if nice, err := strconv.Atoi(fields[16]); err != nil || nice < niceness {
			t.Errorf("thread %s has the niceness %s, want at least %d", thread.Name(), fields[16], niceness)
		}
	}
}
