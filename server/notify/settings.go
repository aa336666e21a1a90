package notify

import (
	"context"
	"errors"
	"time"
)

// Reconfigured makes the settings that are in force now take effect: on connections
// that are open, and on the work on the queue.
func (s *Service) Reconfigured() {
	c := s.Settings()
	s.feed.Poll(c.Poll)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var err error
	on := c.Enabled && c.Webhook.Enabled
	if was := s.sending.Swap(on); on && !was {
		err = s.db().WakeSubscriptions(ctx)
	}
	if was := s.heartbeat.Swap(int64(c.Webhook.Heartbeat)); was != int64(c.Webhook.Heartbeat) && c.Webhook.Heartbeat > 0 {
		err = errors.Join(err, s.db().HastenHeartbeats(ctx, c.Webhook.Heartbeat.Milliseconds()))
	}
	if err != nil {
		s.Log.Warn("apply new settings to subscriptions", "error", err)
	}
	s.watch.AnnounceChange()
	s.sender.CloseIdleConnections()
	s.queue.WakeUp()
	s.life.wakeUp()
}
