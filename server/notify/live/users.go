package live

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"kiln/gen/db"
	"kiln/server/access"
	"kiln/server/store"
)

// messageInterval is how often a server with connections looks for messages to users.
const messageInterval = 200 * time.Millisecond

// passMessages passes messages to users on to their connections.
func (h *Hub) passMessages(ctx context.Context) {
	for store.SleepFor(ctx, messageInterval) {
		now, err := h.Store.ChangeSnapshot(ctx)
		if err != nil {
			continue
		}
		end := now.Horizon()
		// Connections that come later get the messages after end.
		from, recipients := h.passingUpTo(end)
		if len(recipients) == 0 || end.Compare(from) <= 0 {
			continue
		}
		for ctx.Err() == nil {
			rows, err := db.New(h.Store.Pool()).NewMessages(ctx, db.NewMessagesParams{FromEpoch: int64(from.Epoch), FromXid: fmt.Sprint(from.XID),
				ToEpoch: int64(end.Epoch), ToXid: fmt.Sprint(end.XID), Recipients: recipients})
			if err != nil {
				store.SleepFor(ctx, messageInterval)
				continue
			}
			var ids []pgtype.UUID
			for _, r := range rows {
				if h.pushToUser(r.Recipient, store.ChangePosition{Epoch: store.EpochID(r.Epoch), XID: r.Xid}, []byte(r.Body)) {
					ids = append(ids, r.ID)
				}
			}
			h.noteDelivered(ctx, ids)
			break
		}
	}
}

// passingUpTo says that messages are passed on up to a transaction: from which one on, and to
// whom.
func (h *Hub) passingUpTo(end store.ChangePosition) (from store.ChangePosition, recipients []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if from = h.messages; end.Compare(from) > 0 {
		h.messages = end
	}
	for c := range h.clients {
		recipients = append(recipients, names(c.principal)...)
	}
	slices.Sort(recipients)
	return from, slices.Compact(recipients)
}

func (h *Hub) noteDelivered(ctx context.Context, ids []pgtype.UUID) {
	if len(ids) > 0 {
		if err := db.New(h.Store.Pool()).MessagesDelivered(ctx, ids); err != nil {
			h.Log.Warn("note that messages were delivered", "error", err)
		}
	}
}

// names are the names that address a user as a recipient.
func names(p *access.Principal) []string {
	if p == nil || p.IsOpen() {
		return nil
	}
	var list []string
	for i, name := range []string{p.User(), p.FHIRUser} {
		if i == 0 && p.Issuer != "" {
			continue // a name elsewhere is nobody's here
		}
		if name != "" {
			list = append(list, name)
		}
	}
	return list
}

// pushToUser passes a message of a transaction on to the connections of a user, and reports whether
// there was one.
func (h *Hub) pushToUser(recipient string, at store.ChangePosition, body []byte) (told bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.clients {
		if at.Compare(c.messages) >= 0 && slices.Contains(names(c.principal), recipient) {
			c.pushNotification(addressed{notification: &notification{name: "notify", data: body, written: time.Now()}})
			told = true
		}
	}
	return told
}

// sendStoredMessages passes on the messages stored while a user was away.
func (h *Hub) sendStoredMessages(ctx context.Context, c *client) {
	if h.awaitBegun(ctx) != nil {
		return
	}
	h.mu.Lock()
	end := c.messages
	h.mu.Unlock()
	for _, name := range names(c.principal) {
		rows, err := db.New(h.Store.Pool()).WaitingMessages(ctx, db.WaitingMessagesParams{Recipient: name, ToEpoch: int64(end.Epoch), ToXid: fmt.Sprint(end.XID)})
		if err != nil || len(rows) == 0 {
			continue
		}
		var page []addressed
		var ids []pgtype.UUID
		for _, r := range rows {
			page = append(page, addressed{notification: &notification{name: "notify", data: []byte(r.Body), written: time.Now()}})
			ids = append(ids, r.ID)
		}
		select {
		case c.replay <- page:
			h.noteDelivered(ctx, ids)
		case <-ctx.Done():
			return
		}
	}
}
