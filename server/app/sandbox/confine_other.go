//go:build !linux

package sandbox

import (
	"errors"
	"syscall"
)

// Supported reports whether this platform can hold a script.
const Supported = false

func confine(int64) error { return errors.New("this platform cannot hold a script") }

func processAttributes(bool) *syscall.SysProcAttr { return nil }
