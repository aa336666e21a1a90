package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// journal is the state file of `kiln load`: requests and their results, one JSON object a
// line, written before a request is sent and after its answer. A request without an answer
// may be stored or not: that is looked up before it is sent again.
type journal struct {
	path, server string

	mu    sync.Mutex
	f     *os.File
	items map[string]*record
	// claimed are the resources that are known to be of an item, the latest ones, so
	// that they are not taken for another item with the same content. before is the
	// full generation ahead of it.
	claimed, before map[string]bool
}

// maxClaimed bounds one generation of claimed resources.
const maxClaimed = 200_000

// record is the journal's state of an item.
type record struct {
	// sent and last are when it was sent the first and the last time, by the server's
	// clock; zero when never.
	sent, last time.Time
	done       bool
	unsure     bool         // the last sending has no answer, or one that does not tell
	stored     map[int]bool // entries of a batch that are stored
}

// line is one line of the file.
type line struct {
	Server string    `json:"server"`
	Key    string    `json:"key"`
	Event  string    `json:"event"` // sent, stored (with entries), refused, done
	At     time.Time `json:"at,omitzero"`
	// Entries are the stored entries of a batch; Locations the locations of stored
	// resources.
	Entries   []int    `json:"entries,omitempty"`
	Locations []string `json:"locations,omitempty"`
	Unsure    bool     `json:"unsure,omitempty"`
}

// The events of an item.
const (
	eventSent    = "sent"    // it goes out now
	eventStored  = "stored"  // some entries are stored; the others are not, or Unsure
	eventRefused = "refused" // the server has stored nothing of it
	eventDone    = "done"    // all of it is stored
)

// openJournal reads what earlier loads of the same state file did. Lines about another
// server count where has finds a resource there that only its database can have: servers
// of one database go on for each other. Else the load is refused, as the file is not about
// this server.
func openJournal(path, server string, has func(location string) (bool, error)) (*journal, error) {
	j := &journal{path: path, server: server, items: make(map[string]*record), claimed: make(map[string]bool)}
	others := make(map[string]*otherServer)
	if err := readLines(path, func(l line) {
		if l.Server != server {
			if others[l.Server] == nil {
				others[l.Server] = &otherServer{}
			}
			others[l.Server].read(l)
		}
	}); err != nil {
		return nil, err
	}
	for name, o := range others {
		same, err := o.sameDatabase(has)
		if err != nil {
			return nil, err
		}
		if !same {
			return nil, fmt.Errorf("%s is the state of a load to %s that has not ended, and %s has nothing of it: name that server with --server, or another file with --state", path, name, server)
		}
	}
	if err := readLines(path, j.apply); err != nil {
		return nil, err
	}
	var err error
	if j.f, err = os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
		return nil, fmt.Errorf("state file: %w", err)
	}
	return j, nil
}

// readLines reads a state file; none is an empty one.
func readLines(path string, use func(line)) error {
	f, err := os.Open(path)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("state file: %w", err)
	}
	defer f.Close()
	for lines := bufio.NewReader(f); ; {
		text, err := lines.ReadString('\n')
		if err != nil {
			return nil // a line that was cut off by a crash has no end and does not count
		}
		var l line
		if json.Unmarshal([]byte(text), &l) == nil {
			use(l)
		}
	}
}

// otherServer is a state file's record of a load to another server.
type otherServer struct {
	began time.Time // the first sending
	acked bool      // something was acknowledged
	made  []string  // some of the resources whose ids it made itself
}

// maxMade is how many resources are enough to know a database by.
const maxMade = 3

func (o *otherServer) read(l line) {
	if l.Event == eventSent && o.began.IsZero() {
		o.began = l.At
	}
	o.acked = o.acked || l.Event == eventDone || l.Event == eventStored
	for _, at := range l.Locations {
		if len(o.made) == maxMade {
			break
		}
		if _, id, _ := strings.Cut(at, "/"); madeSince(id, o.began) {
			o.made = append(o.made, at)
		}
	}
}

// sameDatabase reports whether the present server has the resources that the other server
// acknowledged: it has one whose id was made during that load. Unacknowledged ones are
// looked up before they are sent, so they do not matter.
func (o *otherServer) sameDatabase(has func(location string) (bool, error)) (bool, error) {
	if !o.acked {
		return true, nil
	}
	for _, at := range o.made {
		if same, err := has(at); err != nil || same {
			return same, err
		}
	}
	return false, nil
}

func (j *journal) apply(l line) {
	r := j.items[l.Key]
	if r == nil {
		r = &record{stored: make(map[int]bool)}
		j.items[l.Key] = r
	}
	switch l.Event {
	case eventSent:
		if r.unsure, r.last = true, l.At; r.sent.IsZero() {
			r.sent = l.At
		}
	case eventStored:
		r.unsure = l.Unsure
		for _, i := range l.Entries {
			r.stored[i] = true
		}
	case eventRefused:
		r.unsure = false
	case eventDone:
		r.done, r.unsure = true, false
	}
	for _, at := range l.Locations {
		j.claims(at)
	}
}

func (j *journal) claims(location string) {
	if len(j.claimed) >= maxClaimed {
		j.before, j.claimed = j.claimed, make(map[string]bool)
	}
	j.claimed[location] = true
}

// noteLine writes an event down. It returns the error of writing: what cannot be noted
// must not be sent.
func (j *journal) noteLine(l line) error {
	l.Server = j.server
	text, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("state file: %w", err)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.apply(l)
	if _, err := j.f.Write(append(text, '\n')); err != nil {
		return fmt.Errorf("state file: %w", err)
	}
	return nil
}

// recordOf returns the state of an item, its zero value if there is none.
func (j *journal) recordOf(key string) record {
	j.mu.Lock()
	defer j.mu.Unlock()
	if r := j.items[key]; r != nil {
		return *r
	}
	return record{}
}

// claimLocation takes location for an item. It reports false where another item has it.
func (j *journal) claimLocation(location string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.claimed[location] || j.before[location] {
		return false
	}
	j.claims(location)
	return true
}

// counts returns how many items are done, and of how many it is not known.
func (j *journal) counts() (done, unsure int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, r := range j.items {
		if r.done {
			done++
		} else if r.unsure {
			unsure++
		}
	}
	return done, unsure
}

func (j *journal) close() { j.f.Close() }

func (j *journal) remove() error {
	j.f.Close()
	return os.Remove(j.path)
}
