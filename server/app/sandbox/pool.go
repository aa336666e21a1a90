package sandbox

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Limits hold one call.
type Limits struct {
	Execution time.Duration // of the script's own time
	Memory    int64         // bytes that the script may hold
}

// Line is a line of the console.
type Line struct {
	Level string    `json:"level"` // debug, info, warn, error
	At    time.Time `json:"at"`
	Text  string    `json:"text"`
}

// Call is one run of a script.
type Call struct {
	Code    string
	Context json.RawMessage // the argument of the handler, without the next two
	// Resource and Parameters are the JSON texts of context.resource, context.raw.resource
	// and context.raw.parameters; nil for none.
	Resource, Parameters json.RawMessage
	Fetch                bool // there is a function fetch
	// App and Client share the workers fairly with others (turn.go); "" is not counted. A call whose ctx belongs to another
	// script is nested and counts for the App and Client of the first call.
	App, Client string
	// Host runs the host functions of the script; several goroutines may call it. The script catches its failure as
	// OperationOutcomeError.
	Host func(ctx context.Context, function string, args json.RawMessage) (json.RawMessage, *Failure)
	// Log gets each line of the console; nil drops them.
	Log func(Line)
}

// Pool are the workers of one server. Its fields are set before first use.
type Pool struct {
	// Command starts a worker: the program and its arguments. The limit of memory in
	// bytes is appended.
	Command []string
	Limits  Limits // SetLimits changes them later
	Size    int    // workers at the same time, more beside endless scripts (turn.go); 0 means 4
	Warm    int    // idle workers that are kept; 0 means 1
	Logger  *slog.Logger

	once    sync.Once
	running sync.WaitGroup     // a turn each
	mu      sync.Mutex         // of the following, and of trees
	turns   map[*turn]struct{} // first calls that run
	waiting []*turn            // calls that wait for a turn, oldest first
	nested  int                // nested calls that run
	later   bool               // a timer will dispatch
	// Numbers of turns: of all kinds by App and by client, and of depth 2 by App.
	byApp, byClient, nestedOf map[string]int
	idle                      []*process
	warming                   int                  // idle workers that start
	slowApps, slowClients     map[string]time.Time // when they had a slow script last
	ended                     bool

	spawn chan func()
	warms sync.WaitGroup
}

// killGrace is how long a worker may be over Limits.Execution, of a native loop that
// cannot be interrupted.
const killGrace = time.Second

// maxCalls is how many calls a worker answers before it is replaced, which takes as much as
// some hundred calls.
const maxCalls = 50_000

func (p *Pool) start() {
	p.once.Do(func() {
		if p.Size == 0 {
			p.Size = 4
		}
		if p.Warm == 0 {
			p.Warm = 1
		}
		if p.Logger == nil {
			p.Logger = slog.New(slog.DiscardHandler)
		}
		p.spawn = make(chan func())
		// A worker dies with the thread that has started it: one that lives as long as
		// the pool.
		go func() {
			runtime.LockOSThread()
			if err := comeBehind(); err != nil {
				p.Logger.Warn("scripts take processors from requests", slog.Any("error", err))
			}
			for f := range p.spawn {
				f()
			}
		}()
	})
}

// SetLimits makes l the limits of the calls that begin from now on. Idle workers, whose
// process is held to other limits, are replaced.
func (p *Pool) SetLimits(l Limits) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Limits == l {
		return
	}
	p.Limits = l
	for _, w := range p.idle {
		w.end()
	}
	p.idle = nil
}

func (p *Pool) limits() Limits {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.Limits
}

// Supported reports whether there is a sandbox: on this platform, and in this program.
func (p *Pool) Supported() bool { return Supported && len(p.Command) > 0 }

// Close ends the workers. Calls that run fail.
func (p *Pool) Close() {
	p.start()
	p.mu.Lock()
	was := p.ended
	p.ended = true
	idle, waiting := p.idle, p.waiting
	p.idle, p.waiting = nil, nil
	p.mu.Unlock()
	if was {
		return
	}
	for _, w := range idle {
		w.end()
	}
	for _, t := range waiting {
		close(t.ready)
	}
	p.running.Wait()
	p.warms.Wait()
	close(p.spawn)
}

// Check reports why code is no script, nil when it is one.
func (p *Pool) Check(ctx context.Context, code string) error {
	_, err := p.use(ctx, &frame{Kind: frameCheck, texts: texts{Code: []byte(code)}}, &Call{})
	return err
}

// Run runs a script and returns its result as JSON, nil for undefined and null. It fails with a *Failure if the script
// does, and with the error of ctx if that ends first.
func (p *Pool) Run(ctx context.Context, c *Call) (json.RawMessage, error) {
	return p.use(ctx, &frame{Kind: frameCall, Fetch: c.Fetch, texts: texts{Code: []byte(c.Code), Context: c.Context, Resource: c.Resource, Parameters: c.Parameters}}, c)
}

// ErrNoWorker is of a request that no worker began to carry out: they could not be started, or
// were killed. The script has done nothing.
var ErrNoWorker = errors.New("sandbox: there is no worker")

// use has a worker carry out one request.
func (p *Pool) use(ctx context.Context, f *frame, c *Call) (json.RawMessage, error) {
	if !p.Supported() {
		return nil, errors.New("sandbox: this program cannot hold a script")
	}
	p.start()
	t, err := p.enterTurn(ctx, c)
	if err != nil {
		return nil, err
	}
	defer p.leaveTurn(t)
	for attempt := 1; ; attempt++ {
		w, err := p.take(ctx, t)
		if err != nil {
			if errors.Is(err, ErrNoWorker) && attempt < 3 && ctx.Err() == nil {
				continue // it was killed, or could not be, while it started
			}
			return nil, err
		}
		if f.Kind == frameCall {
			f.Execution, f.Memory = w.limits.Execution.Milliseconds(), w.limits.Memory
		}
		value, sent, err := w.do(ctx, t, f, c, w.limits)
		if w.demoted {
			p.noteSlow(t)
		}
		p.give(w)
		if err == nil {
			return value, nil
		}
		if !sent && attempt < 3 && ctx.Err() == nil {
			continue // an idle worker that had died
		}
		return nil, err
	}
}

// take returns an idle worker, or a new one, which starts slowly beside a flood. The last idle
// worker is therefore for calls that are no part of a flood.
func (p *Pool) take(ctx context.Context, t *turn) (*process, error) {
	p.mu.Lock()
	if p.ended {
		p.mu.Unlock()
		return nil, errClosed
	}
	if n := len(p.idle); n > 1 || n == 1 && p.turnLevel(t) <= 1 && !p.isSlow(t) { // the level counts t itself
		w := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.keepWarm()
		p.mu.Unlock()
		return w, nil
	}
	p.mu.Unlock()
	return p.launch(ctx)
}

// give takes a worker back, or replaces it.
func (p *Pool) give(w *process) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !w.broken && w.calls < maxCalls && w.limits == p.Limits && !p.ended && len(p.idle) < p.Size {
		p.idle = append(p.idle, w)
		return
	}
	w.end()
	p.keepWarm()
}

// keepWarm starts an idle worker where there are fewer than Pool.Warm. p.mu is held.
func (p *Pool) keepWarm() {
	if p.ended || len(p.idle)+p.warming >= p.Warm {
		return
	}
	p.warming++
	p.warms.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		w, err := p.launch(ctx)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.warming--
		if err != nil {
			p.Logger.Warn("start a sandbox worker", slog.Any("error", err))
			return
		}
		if p.ended || len(p.idle) >= p.Size || w.limits != p.Limits {
			w.end()
			return
		}
		p.idle = append(p.idle, w)
	})
}

// process is a worker as seen by its host. The caller itself reads the frames: there is no goroutine between the worker
// and its caller.
type process struct {
	command *exec.Cmd
	limits  Limits // that it was started with
	in, out *os.File
	frames  *bufio.Reader // of out
	stderr  *bounded
	calls   int
	broken  bool
	demoted bool // its last script was slow
	once    sync.Once
	dead    chan struct{} // closed when the process has ended and is reaped
}

// launch starts a worker and waits until it is confined.
func (p *Pool) launch(ctx context.Context) (*process, error) {
	w, err := p.exec(true)
	if err != nil {
		if w, err = p.exec(false); err != nil {
			return nil, fmt.Errorf("%w: start one: %w", ErrNoWorker, err)
		}
	}
	stop := context.AfterFunc(ctx, w.interrupt)
	defer stop()
	f, err := receive(w.frames, maxFrame)
	switch {
	case err == nil && f.Kind == frameResult && stop():
		return w, nil
	case ctx.Err() != nil:
		w.end()
		return nil, ctx.Err()
	}
	w.end()
	<-w.dead
	return nil, fmt.Errorf("%w: it does not start: %s", ErrNoWorker, w.stderr)
}

func (p *Pool) exec(isolate bool) (*process, error) {
	w := &process{limits: p.limits(), stderr: new(bounded), dead: make(chan struct{})}
	args := append(append([]string{}, p.Command[1:]...), strconv.FormatInt(w.limits.Memory, 10))
	w.command = exec.Command(p.Command[0], args...)
	w.command.Env = []string{"GOTRACEBACK=none", "GOMAXPROCS=2"} // one for the script, one for who looks at it
	w.command.Dir = "/"
	w.command.Stderr = w.stderr
	w.command.SysProcAttr = processAttributes(isolate)
	in, out, err := w.pipes()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	defer out.Close()
	w.command.Stdin, w.command.Stdout = in, out
	started := make(chan error, 1)
	p.spawn <- func() { started <- w.command.Start() }
	if err := <-started; err != nil {
		w.in.Close()
		w.out.Close()
		return nil, err
	}
	w.frames = bufio.NewReader(w.out)
	go func() {
		_ = w.command.Wait()
		close(w.dead)
	}()
	return w, nil
}

// pipes makes the pipes of a worker, and returns the worker's ends. exec.Cmd would close its own pipes at the worker's
// end, with unread output.
func (w *process) pipes() (in, out *os.File, err error) {
	if in, w.in, err = os.Pipe(); err != nil {
		return nil, nil, err
	}
	if w.out, out, err = os.Pipe(); err != nil {
		in.Close()
		w.in.Close()
		return nil, nil, err
	}
	return in, out, nil
}

// end kills the worker.
func (w *process) end() {
	w.once.Do(func() {
		_ = w.command.Process.Kill()
		w.in.Close()
		w.out.Close()
	})
}

// interrupt has the reading of frames and the sending of one end.
func (w *process) interrupt() {
	_ = w.in.SetWriteDeadline(past)
	_ = w.out.SetReadDeadline(past)
}

// past is a deadline that is over.
var past = time.Unix(1, 0)

// do carries out one request of the turn t. sent is false where the worker was dead before.
func (w *process) do(ctx context.Context, t *turn, f *frame, c *Call, limits Limits) (value json.RawMessage, sent bool, err error) {
	w.calls++
	w.broken = true // until it has answered as it should
	ctx, cancel := context.WithCancel(context.WithValue(ctx, turnKey{}, t))
	var hosts sync.WaitGroup
	answers := make(chan *frame, maxHostCalls)
	defer func() {
		cancel()
		hosts.Wait()
		for len(answers) > 0 {
			t.addBytes(-len((<-answers).Value))
		}
	}()
	stop := context.AfterFunc(ctx, w.interrupt)
	defer func() {
		if !stop() {
			w.broken = true // the interrupt may come to the next call
		}
	}()
	if sent, err := w.sendCall(ctx, f); err != nil {
		return nil, sent, err
	}
	left := limits.Execution + killGrace
	waiting := 0 // answers owed
	got := false
	for began := time.Now(); ; {
		r, err := w.receiveFrame(ctx, began.Add(left), limits)
		if errors.Is(err, errEnded) {
			if !got && w.stderr.String() == "" && f.Kind == frameCheck { // a check does nothing that may not be done again
				return nil, false, fmt.Errorf("%w: it has ended", ErrNoWorker)
			}
			return nil, true, w.death(limits)
		}
		if err != nil {
			return nil, true, err
		}
		got = true
		w.demoted = r.Demoted
		switch r.Kind {
		case frameLine:
			if c.Log != nil {
				c.Log(Line{Level: string(r.Level), At: time.Now().UTC(), Text: string(r.Text)})
			}
		case frameHost:
			waiting++
			hosts.Go(func() {
				a := c.answerHost(ctx, r)
				t.addBytes(len(a.Value))
				answers <- a
			})
		case frameWait: // the script does, until it has an answer
			left -= time.Since(began)
			select {
			case a := <-answers:
				waiting--
				_ = send(w.in, a) // where the worker has ended, receive says so
				t.addBytes(-len(a.Value))
				began = time.Now()
			case <-ctx.Done():
				return nil, true, ctx.Err()
			}
		case frameResult:
			value, err = w.readResult(r, waiting)
			return value, true, err
		}
	}
}

// errEnded says that a worker has ended in the middle of a call.
var errEnded = errors.New("the worker has ended")

// sendCall sends a request. sent is false where the worker was dead before.
func (w *process) sendCall(ctx context.Context, f *frame) (sent bool, err error) {
	var large *frameSizeError
	switch err := send(w.in, f); {
	case errors.As(err, &large):
		w.broken = false
		return true, large.failure("what the script is called with")
	case err != nil && ctx.Err() != nil:
		return true, ctx.Err()
	case err != nil:
		return false, fmt.Errorf("%w: it had ended: %w", ErrNoWorker, err)
	}
	return true, nil
}

// receiveFrame receives the next frame before an instant. It fails with errEnded where the worker has ended.
func (w *process) receiveFrame(ctx context.Context, until time.Time, limits Limits) (*frame, error) {
	if err := w.out.SetReadDeadline(until); err != nil {
		return nil, err
	}
	if ctx.Err() != nil { // its deadline may be the one that was just replaced
		return nil, ctx.Err()
	}
	r, err := receive(w.frames, maxFrame)
	switch {
	case err == nil:
		return r, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, os.ErrDeadlineExceeded):
		w.demoted = true
		return nil, timeFailure(limits)
	}
	w.end()
	<-w.dead
	return nil, errEnded
}

// answerHost calls the host function that a frame names, and returns the frame of the answer.
func (c *Call) answerHost(ctx context.Context, r *frame) *frame {
	a := &frame{Kind: frameAnswer, ID: r.ID}
	if c.Host == nil {
		a.Failure = &Failure{Kind: KindOutcome, Status: 404, Code: "not-supported", Message: "there is no host"}
	} else {
		a.Value, a.Failure = c.Host(ctx, string(r.Function), r.Args)
	}
	if size := len(a.Value); size > maxAnswer {
		a.Value, a.Failure = nil, (&frameSizeError{size, maxAnswer}).failure("the answer of "+cutText(string(r.Function), 20))
	}
	return a
}

// readResult reads the frame that ends a call. waiting is the number of answers that the worker has not received.
func (w *process) readResult(r *frame, waiting int) (json.RawMessage, error) {
	if r.Failure != nil {
		w.broken = r.Failure.isBreach() || r.Demoted
		return nil, r.Failure
	}
	if len(r.Value) > 0 && !json.Valid(r.Value) {
		return nil, &Failure{Kind: KindWorker, Message: "the process that the script ran in answered no JSON"}
	}
	// It would take a late answer for another's.
	w.broken = waiting > 0 || r.Demoted
	if len(r.Value) == 0 {
		return nil, nil
	}
	return r.Value, nil
}

// death is why a worker has ended in the middle of a call.
func (w *process) death(limits Limits) *Failure {
	text := w.stderr.String()
	switch {
	case strings.Contains(text, "out of memory"), strings.Contains(text, "stack overflow"), strings.Contains(text, "stack exceeds"),
		strings.Contains(text, "cannot allocate"):
		return memoryFailure(limits)
	}
	return &Failure{Kind: KindWorker, Message: "the process that the script ran in has ended"}
}

// bounded keeps the first written bytes.
type bounded struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *bounded) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if room := 8<<10 - b.b.Len(); room > 0 {
		b.b.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

func (b *bounded) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
