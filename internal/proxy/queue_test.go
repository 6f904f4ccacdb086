package proxy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/plane"
	"github.com/sluice-proxy/sluice/internal/route"
)

// pieces limits a write to this number of ports.
func pieces(ports int) func(*Options) {
	return func(o *Options) { o.Load = plane.Load{Piece: ports} }
}

// setLargeService adds or changes a Service with many ports.
func (w *testLoop) setLargeService(name string, ports int) {
	svc := &cluster.Service{
		Name:       cluster.Name{Namespace: "default", Name: name},
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, name[0]})},
	}
	for n := range ports {
		svc.Ports = append(svc.Ports, cluster.ServicePort{Name: fmt.Sprint(n), Protocol: cluster.TCP, Port: uint16(n + 1)})
	}
	w.store.SetService(svc)
}

func TestALargeServiceIsWrittenInPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, pieces(2))
		w.listed()
		w.wantOps("refresh\napply ")
		w.follower.take()
		w.plane.onApply = func() {
			if len(w.syncs) == 1 {
				w.setService("a", 1) // arrives during the first piece
			}
		}
		w.setLargeService("large", 6)
		w.wantOps("apply +large\napply +a +large\napply +large")
		w.wantNotified("a ->1\nlarge ->1") // the large one when all its pieces are written
		if b := w.store.Backlog(); !b.Empty() {
			t.Errorf("the backlog is %+v, want none", b)
		}
	})
}

func TestPiecesDoNotWaitForMinPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, func(o *Options) {
			pieces(1)(o)
			o.MinPeriod = time.Minute
		})
		w.listed()
		w.advance(time.Minute)
		w.plane.takeOps()
		began := time.Now()
		w.setLargeService("large", 4)
		w.wantOps("apply +large\napply +large\napply +large\napply +large")
		if took := time.Since(began); took != 0 {
			t.Errorf("the pieces took %v, want no pause between them", took)
		}
	})
}

func TestAFailureBetweenPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, pieces(1))
		w.listed()
		w.wantOps("refresh\napply ")
		w.follower.take()
		w.plane.applyErrs = []error{nil, errors.New("no memory")}
		w.setLargeService("large", 3)
		w.wantOps("apply +large\napply +large")
		w.wantNotified("")
		delete(w.plane.kernel, "large")
		w.advance(firstRetry)
		w.wantOps("refresh\napply +large") // as a whole
		w.wantNotified("large ->1")
	})
}

func TestAChangeOfTheHostIsWrittenWithAllPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, pieces(1))
		w.listed()
		w.wantOps("refresh\napply ")
		w.plane.onApply = func() {
			if len(w.syncs) == 1 {
				w.store.SetServiceCIDRs([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")})
			}
		}
		w.setLargeService("large", 5)
		w.wantOps("apply +large\napply +large")
	})
}

// Changes are written during a comparison that only looks for faults, but not during one that follows a failure.
func TestChangesAreWrittenDuringALongRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.setService("a", 1)
		w.listed()
		w.wantOps("refresh\napply +a")
		w.plane.refreshTime = 10 * time.Second
		w.compare(Request)
		w.advance(time.Second)
		w.wantOps("refresh")
		began := time.Now()
		w.setService("b", 1)
		synctest.Wait()
		if waited := time.Since(began); waited != 0 {
			t.Errorf("the change waited %v", waited)
		}
		w.wantOps("apply +b\nrefresh")
		w.advance(time.Minute)
		w.wantOps("apply ")

		w.plane.applyErrs = []error{errors.New("no memory")}
		w.setService("c", 1)
		w.advance(time.Second)
		w.setService("d", 1)
		w.advance(time.Second)
		w.wantOps("apply +c\nrefresh")
		w.advance(time.Minute)
		w.wantOps("apply +c\napply +d")
	})
}

// A comparison completes, however many changes arrive.
func TestChangesDoNotPreventAComparison(t *testing.T) {
	for _, tt := range []struct {
		cause Cause
		most  time.Duration
	}{{ForeignEdit, 0}, {Request, auditYields}, {Period, auditYields}} {
		t.Run(string(tt.cause), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t, nil)
				w.listed()
				synctest.Wait()
				const read = 300 * time.Millisecond
				w.plane.refreshTime = read
				began := time.Now()
				w.compare(tt.cause)
				compared := func(s Sync) bool { return s.Cause == tt.cause }
				for port := uint16(1); !slices.ContainsFunc(w.syncs, compared); port++ {
					w.setService("a", port)
					w.advance(100 * time.Millisecond)
					if time.Since(began) > 2*auditYields {
						t.Fatal("the comparison does not complete")
					}
				}
				if took := time.Since(began); took > tt.most+2*read {
					t.Errorf("the comparison took %v, want at most %v and a read", took, tt.most)
				}
			})
		})
	}
}

func TestTheSizeOfAServiceIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, func(o *Options) {
			o.Compiler = route.NewCompiler(route.Options{Excess: func(svc *route.Service) (size, limit string) {
				if len(svc.Ports) < 3 {
					return "", ""
				}
				return fmt.Sprintf("%d ports", len(svc.Ports)), "at most 2"
			}})
		})
		w.setLargeService("a", 2)
		w.setLargeService("b", 3)
		w.listed()
		synctest.Wait()
		if len(w.problems) != 1 ||
			w.problems[0].String() != "Service default/b: spec: 3 ports: too large, not programmed: at most 2" {
			t.Errorf("problems %v", w.problems)
		}
		b := cluster.Name{Namespace: "default", Name: "b"}
		if b := w.view().Routes.Service(b); len(b.Ports) != 0 || b.Ignored == "" {
			t.Errorf("the large Service is %+v, want no ports, and the reason", b)
		}
		w.setLargeService("b", 4) // a different size is not a new problem
		w.setLargeService("b", 2)
		synctest.Wait()
		if len(w.problems) != 1 || len(w.view().Routes.Service(b).Ports) != 2 {
			t.Error("a Service that became smaller is not programmed")
		}
	})
}

// An edit by another program does not wait for a comparison that looks for faults.
func TestAnEditTakesPrecedenceOverAnAudit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.setService("a", 1)
		w.listed()
		synctest.Wait()
		const read = 300 * time.Millisecond
		w.plane.refreshTime = read
		w.compare(Period)
		busy := func() {
			for port := range uint16(20) {
				w.setService("a", port+2)
				w.advance(100 * time.Millisecond)
			}
		}
		busy()
		began := time.Now()
		w.compare(ForeignEdit)
		busy()
		for _, s := range w.syncs {
			if s.Cause == ForeignEdit && s.Began.Sub(began) <= 2*read {
				return
			}
		}
		t.Errorf("no repair within %v of the edit", 2*read)
	})
}
