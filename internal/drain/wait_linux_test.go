package drain_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/linux/conntrack"
	"github.com/sluice-proxy/sluice/internal/testing/conntracktest"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
)

func TestMain(m *testing.M) { os.Exit(kerneltest.Main(m)) }

// BenchmarkWait measures the cost of a wait of a minute with 100,000 entries in the table, and the delay between the
// end of the last connection and the end of the wait.
func BenchmarkWait(b *testing.B) {
	const count, followed, open, closed = 100_000, time.Minute, 3, 7
	from, pod := netip.MustParseAddrPort("10.0.0.1:7"), netip.MustParseAddr("10.1.0.1")
	service, own := netip.MustParseAddrPort("10.96.0.1:80"), netip.AddrPortFrom(pod, 80)
	for _, c := range []struct {
		name  string
		state conntrack.State
		to    netip.AddrPort
	}{
		{"open", open, own},
		{"closed", closed, own},
		{"others", closed, netip.MustParseAddrPort("10.1.0.2:80")},
	} {
		b.Run(c.name, func(b *testing.B) {
			ct := conntracktest.Open(b)
			add := func(s conntrack.State, from, to, backend netip.AddrPort) {
				e := conntrack.Entry{
					Protocol: conntrack.TCP, State: s, OrigSrc: from, OrigDst: to, ReplySrc: backend, ReplyDst: from,
					Status: conntrack.Answered,
				}
				if err := ct.Create(e); err != nil {
					b.Fatal(err)
				}
			}
			ended := time.Now()
			end := func(all conntrack.Filter) {
				err := ct.Each(b.Context(), all, func(e conntrack.Entry) error {
					ended = time.Now()
					return ct.Delete(b.Context(), e)
				})
				if err != nil {
					b.Fatal(err)
				}
			}
			for i := range count {
				addr := netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)})
				add(c.state, netip.AddrPortFrom(addr, 1+uint16(i>>16)), service, c.to)
			}
			timeouts := drain.Timeouts{New: time.Minute, Stream: time.Minute}
			waits := drain.NewWaits(drain.Options{
				Table: ct.Table, Timeouts: func() (drain.Timeouts, error) { return timeouts, nil },
				Local: func(context.Context) ([]netip.Addr, error) { return nil, nil },
			}, func(drain.Outcome, time.Duration) {})
			for b.Loop() {
				add(open, from, own, own)
				debug.FreeOSMemory()
				cpu, memory := usage(b)
				done := make(chan time.Time, 1)
				go func() {
					r, err := waits.Wait(b.Context(), drain.Pod{Addrs: []netip.Addr{pod}}, drain.MaxWait)
					if err != nil || !r.Drained {
						b.Errorf("%+v, %v", r, err)
					}
					done <- time.Now()
				}()
				time.Sleep(followed)
				used, most := usage(b)
				b.ReportMetric(100*(used-cpu).Seconds()/followed.Seconds(), "%CPU")
				b.ReportMetric(float64(most-memory)/1024, "MB")
				if c.state == open {
					end(conntrack.Filter{Family: conntrack.IPv4, OrigDst: service})
				}
				time.Sleep(drain.Quiet)
				end(conntrack.Filter{Family: conntrack.IPv4, OrigDst: own})
				b.ReportMetric(float64((<-done).Sub(ended).Milliseconds()), "ms-late")
			}
		})
	}
}

// usage returns the CPU time of this process, and its memory in KB.
func usage(b *testing.B) (cpu time.Duration, memory int) {
	b.Helper()
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	_, rss, _ := strings.Cut(string(status), "VmRSS:")
	if _, err := fmt.Sscan(rss, &memory); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()), memory
}
