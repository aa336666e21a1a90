// Command kiln is the server and everything around it: one command a file.
// Flags, environment and configuration files are read here and nowhere else.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ends := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup
		ends = append(ends, syscall.SIGHUP) // the terminal is gone
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	err := root().ExecuteContext(ctx)
	cut := ctx.Err() != nil
	stop()
	var reported reportedError
	switch {
	case err == nil:
	case cut && errors.Is(err, context.Canceled), cut && errors.Is(err, errNotReady):
		// The command that the signal interrupted prints its own error.
		fmt.Fprintln(os.Stderr, "kiln: interrupted")
		os.Exit(1)
	case errors.As(err, &reported):
		os.Exit(1)
	default:
		fmt.Fprintln(os.Stderr, "kiln:", err)
		os.Exit(1)
	}
}

// errNotReady is a start that did not come to its end.
var errNotReady = errors.New("the server was not ready yet")

// reportedError is a failure that the user has read of already.
type reportedError struct{ error }
