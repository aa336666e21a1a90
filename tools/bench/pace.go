package main

import (
	"encoding/json"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// paceWork is what pace reads.
var paceWork = []byte("[" + strings.Repeat(`{"code":{"coding":[{"system":"http://loinc.org","code":"8302-2"}]},"value":180.50},`, 400) + "0]")

// pace is the processor time that a fixed piece of work takes just now: waiting for a
// processor is not in it. Where it grows, the machine has become slower: cores that
// are shared with others do so at any time.
func pace() time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := threadTime()
	if !json.Valid(paceWork) {
		panic("the work is no JSON")
	}
	return threadTime() - before
}

// threadTime is the processor time of this thread, 0 where it is not told.
func threadTime() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
