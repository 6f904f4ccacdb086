package manifest

import (
	"fmt"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/text"
)

const (
	// mostFailures is how many failures of a file are kept one by one.
	mostFailures = 1000

	// mostProblems is how many problems of a file, or of an object, are reported
	// one by one.
	mostProblems = 10
)

// summary returns the first of the problems of an object or a file, and how many
// more there are of count altogether.
func summary(object string, problems []route.Problem, count int) []route.Problem {
	first := problems[:min(len(problems), mostProblems)]
	if count == len(first) {
		return problems
	}
	return append(slices.Clip(first), route.Problem{
		Object: object, Reason: "and " + text.Count(count-len(first), "more problem"),
	})
}

// problemCount returns how many problems there are, with those that are only
// counted.
func (c content) problemCount() int {
	n := len(c.problems) + len(c.failures) + c.missed + c.more
	for _, o := range c.objects {
		n += len(o.problems)
	}
	return n
}

// report returns the problems of a file to report: the first ones, and the number of
// the others.
func (c content) report(path string) []route.Problem {
	out := summary(path, c.all(), c.problemCount())
	if broken := len(c.failures) + c.missed; broken > mostProblems {
		out = append(out, route.Problem{
			Object: path, Reason: fmt.Sprintf("%s cannot be read altogether; those that said something before keep it", text.Count(broken, "part")),
		})
	}
	return out
}

// burst is how many problems are reported at once at most; then one a second.
const burst = 200

// budget bounds how many problems are reported. One goroutine uses it.
type budget struct {
	report func([]route.Problem) // may be nil

	spent   int
	since   time.Time // spent is as it was then
	dropped int
}

// Report reports problems as far as the budget allows, and counts the others.
func (b *budget) Report(problems []route.Problem) {
	if b.report == nil {
		return
	}
	now := time.Now()
	if earned := int(min(now.Sub(b.since), time.Hour) / time.Second); earned > 0 {
		b.spent, b.since = max(0, b.spent-earned), now
	}
	n := min(len(problems), burst-b.spent)
	b.spent += n
	b.dropped += len(problems) - n
	if n > 0 {
		b.report(problems[:n])
	}
}

// Flush reports how many problems were not reported.
func (b *budget) Flush() {
	if b.dropped == 0 {
		return
	}
	b.report([]route.Problem{{
		Object: "manifests", Reason: text.Count(b.dropped, "more problem") + " not reported one by one; sluice status counts the problems",
	}})
	b.dropped = 0
}
