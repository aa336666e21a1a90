package queue

import (
	"context"
	"sync"
	"time"

	"kiln/gen/db"
	"kiln/server/notify/webhook"
)

// How the last request to a subscriber was answered, in notification_subscriber.answers.
const (
	answersUnknown = "unknown" // no request yet
	answersPrompt  = "prompt"
	answersLate    = "late" // late or never
)

// promptAnswer is how fast a prompt answer comes, or half of the timeout where that is less.
const promptAnswer = time.Second

// answersOf is how a subscriber answers, by its last attempt.
func answersOf(r webhook.Result, timeout time.Duration) string {
	if r.TimedOut || r.Duration >= min(promptAnswer, timeout/2) {
		return answersLate
	}
	return answersPrompt
}

// places bounds the subscribers that are sent to at a time. Late and unknown subscribers cannot
// take all places: endpoints that hang leave some to endpoints that answer. The limit may change.
type places struct {
	freed chan struct{} // has an element when a place was given back

	mu    sync.Mutex
	taken int
	of    map[string]int // of taken, by answers
}

// freePlaces are the places that a server may fill now.
type freePlaces struct {
	all      int
	unproven int // of all, for subscribers that do not answer promptly
	late     int // of unproven, for those that answer late
}

func newPlaces() places {
	return places{freed: make(chan struct{}, 1), of: make(map[string]int)}
}

// room is how many places subscribers may take that do not answer promptly, and of these the
// ones that answer late; mu is held. A
// quarter of all places is for subscribers that answer promptly. Those that answer late get one
// half at most.
func (p *places) room(limit int) (unproven, late int) {
	unproven = limit - p.of[answersUnknown] - p.of[answersLate]
	if limit > 4 {
		unproven -= limit / 4
	}
	unproven = max(0, unproven)
	return unproven, max(0, min(unproven, limit-limit/2-p.of[answersLate]))
}

// takePlaces waits until a place is free, and takes all that are. It returns false when ctx ended
// first. keep gives the unused places back.
func (p *places) takePlaces(ctx context.Context, limit func() int) (freePlaces, bool) {
	for ctx.Err() == nil {
		p.mu.Lock()
		if all := limit() - p.taken; all > 0 {
			p.taken += all
			unproven, late := p.room(limit())
			p.mu.Unlock()
			return freePlaces{all: all, unproven: min(all, unproven), late: min(all, late)}, true
		}
		p.mu.Unlock()
		select {
		case <-p.freed:
		case <-ctx.Done():
		}
	}
	return freePlaces{}, false
}

// keepPlaces keeps the places of subscribers, of those that were taken.
func (p *places) keepPlaces(f freePlaces, subscribers []db.ClaimSubscribersRow) {
	p.mu.Lock()
	p.taken -= f.all - len(subscribers)
	for _, sub := range subscribers {
		p.of[sub.Answers]++
	}
	p.mu.Unlock()
	p.wake()
}

// returnPlaces gives the place of a subscriber back.
func (p *places) returnPlaces(answers string) {
	p.mu.Lock()
	p.taken--
	p.of[answers]--
	p.mu.Unlock()
	p.wake()
}

func (p *places) wake() {
	select {
	case p.freed <- struct{}{}:
	default:
	}
}

// openPlaces lists which subscribers there are places for.
func (p *places) openPlaces(limit int) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	unproven, late := p.room(limit)
	list := []string{answersPrompt}
	if unproven > 0 {
		list = append(list, answersUnknown)
	}
	if late > 0 {
		list = append(list, answersLate)
	}
	return list
}
