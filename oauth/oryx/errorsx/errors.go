// Package errorsx stands in for github.com/ory/x/errorsx. Fosite uses a few functions of
// that module, whose other packages would bring in 37 further packages. go.mod replaces the
// module with this folder.
package errorsx

// WithStack returns err unchanged. Fosite adds stack traces with it; Kiln never prints them.
func WithStack(err error) error { return err }

// Cause returns the innermost error that err's method Cause leads to, or err.
func Cause(err error) error {
	for {
		c, ok := err.(interface{ Cause() error })
		if !ok {
			return err
		}
		inner := c.Cause()
		if inner == nil {
			return err
		}
		err = inner
	}
}

// An error may implement the following interfaces to describe itself in an answer of OAuth.
type (
	// StatusCodeCarrier has an HTTP status.
	StatusCodeCarrier interface{ StatusCode() int }
	// StatusCarrier has the text of an HTTP status.
	StatusCarrier interface{ Status() string }
	// RequestIDCarrier has the id of the failed request.
	RequestIDCarrier interface{ RequestID() string }
	// ReasonCarrier has a reason for people.
	ReasonCarrier interface{ Reason() string }
	// DebugCarrier has details for developers.
	DebugCarrier interface{ Debug() string }
	// DetailsCarrier has named details.
	DetailsCarrier interface{ Details() map[string]any }
)
