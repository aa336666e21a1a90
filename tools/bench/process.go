package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ticksPerSecond is USER_HZ, which Linux fixes at 100 for everything in /proc.
const ticksPerSecond = 100

// Usage is the use of resources by a group of processes.
type Usage struct {
	CPU     float64 `json:"cpu_seconds"`
	PeakRSS int64   `json:"peak_rss_bytes"`
}

// Watched are the processes whose use is told apart. A pid of 0 is not watched.
type Watched struct {
	Server     int   // the FHIR server
	Postmaster int   // the parent of all PostgreSQL processes
	Standbys   []int // the same of standbys
}

// Monitor samples memory and pace between Start and Stop and takes the processor
// time at both ends.
type Monitor struct {
	w      Watched
	before map[string]float64
	peak   map[string]int64
	paces  []time.Duration
	stop   chan struct{}
	done   sync.WaitGroup
}

// StartMonitor begins to watch.
func StartMonitor(w Watched) *Monitor {
	m := &Monitor{w: w, before: w.cpu(), peak: map[string]int64{}, stop: make(chan struct{})}
	m.sample()
	m.done.Go(func() {
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-m.stop:
				return
			case <-tick.C:
				m.sample()
			}
		}
	})
	return m
}

// Stop ends watching and returns the use of "server", "postgres", "standby-1" and so on, and "tool"; a
// group that is not watched is absent.
func (m *Monitor) Stop() map[string]Usage {
	close(m.stop)
	m.done.Wait()
	m.sample()
	after := m.w.cpu()
	out := map[string]Usage{}
	for name, cpu := range after {
		out[name] = Usage{CPU: cpu - m.before[name], PeakRSS: m.peak[name]}
	}
	return out
}

func (m *Monitor) sample() {
	for name, rss := range m.w.memory() {
		m.peak[name] = max(m.peak[name], rss)
	}
	m.paces = append(m.paces, pace())
}

// Pace is the median of pace while it watched; asked for after Stop.
func (m *Monitor) Pace() time.Duration {
	slices.Sort(m.paces)
	return m.paces[len(m.paces)/2]
}

func (w Watched) cpu() map[string]float64 {
	out := map[string]float64{}
	var self syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &self) == nil {
		out["tool"] = time.Duration(self.Utime.Nano() + self.Stime.Nano()).Seconds()
	}
	if st, err := readStat(w.Server); err == nil {
		out["server"] = st.own
	}
	if total, err := clusterCPU(w.Postmaster); err == nil {
		out["postgres"] = total
	}
	for i, postmaster := range w.Standbys {
		if total, err := clusterCPU(postmaster); err == nil {
			out[standbyName(i)] = total
		}
	}
	return out
}

// standbyName is the group of a standby.
func standbyName(i int) string { return fmt.Sprintf("standby-%d", i+1) }

// clusterCPU is the processor time of a PostgreSQL.
func clusterCPU(postmaster int) (float64, error) {
	st, err := readStat(postmaster)
	if err != nil {
		return 0, err
	}
	// What ended children used is added to the parent when it reaps them.
	total := st.own + st.reaped
	for _, pid := range childrenOf(postmaster) {
		if c, err := readStat(pid); err == nil {
			total += c.own
		}
	}
	return total, nil
}

// Processes that use at most quietTicks for each server during quietFor are called quiet: an idle server and its
// PostgreSQL look for jobs, changes and signals, which takes some 3 % of a processor. This is awaited for at most
// quietWithin.
const (
	quietFor    = 600 * time.Millisecond
	quietTicks  = 4.0
	quietWithin = 4 * time.Second
)

// quiet waits until the watched servers on one PostgreSQL have finished the work behind their answers: AuditEvents,
// autovacuum.
func quiet(ctx context.Context, all ...Watched) {
	used := func() (seconds float64) {
		for i, w := range all {
			cpu := w.cpu()
			if seconds += cpu["server"]; i == 0 {
				seconds += cpu["postgres"]
			}
		}
		return seconds
	}
	end := time.Now().Add(quietWithin)
	for before := used(); time.Now().Before(end); {
		wait(ctx, time.Now().Add(quietFor))
		now := used()
		if ctx.Err() != nil || now-before < quietTicks*float64(len(all))/ticksPerSecond {
			return
		}
		before = now
	}
}

// memory is the resident memory of each group. PostgreSQL's processes share most
// of theirs: it is the private memory of all plus the largest shared part.
func (w Watched) memory() map[string]int64 {
	out := map[string]int64{}
	if m, err := readMemory(os.Getpid()); err == nil {
		out["tool"] = m.anon + m.file + m.shared
	}
	if m, err := readMemory(w.Server); err == nil {
		out["server"] = m.anon + m.file + m.shared
	}
	if m, err := readMemory(w.Postmaster); err == nil {
		private, shared := m.anon, m.shared+m.file
		for _, pid := range childrenOf(w.Postmaster) {
			if c, err := readMemory(pid); err == nil {
				private += c.anon
				shared = max(shared, c.shared+c.file)
			}
		}
		out["postgres"] = private + shared
	}
	return out
}

type procStat struct {
	parent      int
	own, reaped float64 // seconds
}

func readStat(pid int) (procStat, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return procStat{}, err
	}
	return parseStat(b)
}

// parseStat reads /proc/PID/stat. The name in parentheses may hold anything, so
// fields are counted from the last parenthesis.
func parseStat(b []byte) (procStat, error) {
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return procStat{}, fmt.Errorf("unexpected form of /proc/PID/stat")
	}
	f := strings.Fields(string(b[i+1:]))
	if len(f) < 15 {
		return procStat{}, fmt.Errorf("unexpected form of /proc/PID/stat")
	}
	var n [15]int64
	for _, j := range []int{1, 11, 12, 13, 14} {
		v, err := strconv.ParseInt(f[j], 10, 64)
		if err != nil {
			return procStat{}, fmt.Errorf("read /proc/PID/stat: %w", err)
		}
		n[j] = v
	}
	return procStat{
		parent: int(n[1]),
		own:    float64(n[11]+n[12]) / ticksPerSecond,
		reaped: float64(n[13]+n[14]) / ticksPerSecond,
	}, nil
}

type procMemory struct{ anon, file, shared int64 } // bytes

func readMemory(pid int) (procMemory, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return procMemory{}, err
	}
	return parseMemory(string(b)), nil
}

func parseMemory(status string) procMemory {
	var m procMemory
	for line := range strings.Lines(status) {
		name, rest, _ := strings.Cut(line, ":")
		var to *int64
		switch name {
		case "RssAnon":
			to = &m.anon
		case "RssFile":
			to = &m.file
		case "RssShmem":
			to = &m.shared
		default:
			continue
		}
		if f := strings.Fields(rest); len(f) > 0 {
			kb, _ := strconv.ParseInt(f[0], 10, 64)
			*to = kb << 10
		}
	}
	return m
}

// childrenOf returns the direct children of a process.
func childrenOf(pid int) []int {
	if pid == 0 {
		return nil
	}
	var out []int
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid)); err == nil {
		for _, f := range strings.Fields(string(b)) {
			if n, err := strconv.Atoi(f); err == nil {
				out = append(out, n)
			}
		}
		return out
	}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		n, err := strconv.Atoi(filepath.Base(d))
		if err != nil {
			continue
		}
		if st, err := readStat(n); err == nil && st.parent == pid {
			out = append(out, n)
		}
	}
	return out
}

// listenerOf returns the process that listens on a TCP port of this machine, 0
// when there is none or its files may not be read.
func listenerOf(port int) int {
	inodes := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, err := os.ReadFile(table)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			if len(f) < 10 || f[3] != "0A" { // LISTEN
				continue
			}
			_, hex, _ := strings.Cut(f[1], ":")
			if p, err := strconv.ParseInt(hex, 16, 32); err == nil && int(p) == port {
				inodes["socket:["+f[9]+"]"] = true
			}
		}
	}
	if len(inodes) == 0 {
		return 0
	}
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && inodes[to] {
			pid, _ := strconv.Atoi(strings.Split(fd, "/")[2])
			return pid
		}
	}
	return 0
}
