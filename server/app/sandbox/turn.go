package sandbox

import (
	"context"
	"time"
)

// A call has one of Pool.Size turns while it runs. Where all are taken, by scripts that do not
// end, a call that has waited for patience takes over the turn of the call that has had one
// longest, if for as long; that one runs on beside, in its worker. No more than surge times
// Pool.Size calls run at the same time: their workers' memory is bounded by that and
// Limits.Memory.
const (
	patience = 100 * time.Millisecond
	surge    = 4
)

// turn is of a call that runs.
type turn struct {
	began  time.Time
	beside bool // another call has taken it over
}

// enter waits for a turn. It fails with the error of ctx where that ends first.
func (p *Pool) enter(ctx context.Context) (*turn, error) {
	select {
	case p.slots <- struct{}{}:
		return p.begin(), nil
	default:
	}
	waited := time.NewTicker(patience)
	defer waited.Stop()
	for {
		select {
		case p.slots <- struct{}{}:
			return p.begin(), nil
		case <-waited.C:
			if t := p.takeOver(); t != nil {
				return t, nil
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// begin is the turn of a call that begins.
func (p *Pool) begin() *turn {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.beginLocked()
}

func (p *Pool) beginLocked() *turn {
	t := &turn{began: time.Now()}
	if p.turns == nil {
		p.turns = make(map[*turn]struct{}, p.Size)
	}
	p.turns[t] = struct{}{}
	return t
}

// takeOver takes the turn of the call that has had one longest, nil where none has for
// patience, or as many as may run beside.
func (p *Pool) takeOver() *turn {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended || len(p.turns) >= surge*p.Size {
		return nil
	}
	var oldest *turn
	for t := range p.turns {
		if !t.beside && (oldest == nil || t.began.Before(oldest.began)) {
			oldest = t
		}
	}
	if oldest == nil || time.Since(oldest.began) < patience {
		return nil
	}
	oldest.beside = true
	p.beside.Add(1)
	return p.beginLocked() // in the slot of the other
}

// leave ends a turn.
func (p *Pool) leave(t *turn) {
	p.mu.Lock()
	delete(p.turns, t)
	beside := t.beside
	p.mu.Unlock()
	if beside {
		p.beside.Done()
		return
	}
	<-p.slots
}
