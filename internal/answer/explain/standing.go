package explain

import (
	"fmt"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
)

// Reason returns the reason why an endpoint is or is not in a pool, including its failed connections.
func Reason(c route.Choice, now time.Time) string {
	if c.Reason != route.Ejected {
		return c.Reason.String()
	}
	return Standing(c.Share, now)
}

// Standing describes the share of a backend to which connections failed: "ejected for 4 s: 7 connections of 3 clients
// failed; next trial in 6 s". It is empty for a backend with its whole share.
func Standing(s *cluster.Share, now time.Time) string {
	if s == nil {
		return ""
	}
	since := text.Duration(max(0, now.Sub(s.Since)).Truncate(time.Second))
	failed := fmt.Sprintf("%s of %s failed", text.Count(s.Failures, "connection"), text.Count(s.Clients, "client"))
	next := text.Duration(max(0, s.Next.Sub(now)).Round(time.Second))
	switch {
	case s.Part == 0 && s.Next.IsZero():
		return "on trial for " + since + ", waiting for the outcome of its connections: before, " + failed
	case s.Part == 0:
		return fmt.Sprintf("ejected for %s: %s; next trial in %s", since, failed, next)
	case s.Next.IsZero():
		return fmt.Sprintf("on trial for %s with %d/%d of its share: before, %s", since, s.Part, cluster.Whole, failed)
	}
	return fmt.Sprintf("has %d/%d of its share, more in %s: before, %s", s.Part, cluster.Whole, next, failed)
}
