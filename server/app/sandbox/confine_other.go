//go:build !linux

package sandbox

import (
	"errors"
	"syscall"
	"time"
)

// Supported reports whether this platform can hold a script.
const Supported = false

func confine(int64) error { return errors.New("this platform cannot hold a script") }

func comeBehind() error { return nil }

func processorTime() time.Duration { return 0 }

func processAttributes(bool) *syscall.SysProcAttr { return nil }

func demote() {}
