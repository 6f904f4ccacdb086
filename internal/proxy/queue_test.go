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

// pieces bounds a write to so many ports.
func pieces(ports int) func(*Options) {
	return func(o *Options) { o.Load = plane.Load{Piece: ports} }
}

// putWide adds a Service of many ports.
func (w *world) putWide(name string, ports int) {
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
		w.diary("refresh\napply ")
		w.follower.read()
		w.plane.onApply = func() {
			if len(w.syncs) == 1 {
				w.put("a", 1) // arrives during the first piece
			}
		}
		w.putWide("large", 6)
		w.diary("apply +large\napply +a +large\napply +large")
		w.told("a ->1\nlarge ->1") // the large one when it is whole
		if b := w.store.Backlog(); !b.Empty() {
			t.Errorf("%+v waits, want nothing", b)
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
		w.pass(time.Minute)
		w.plane.read()
		began := time.Now()
		w.putWide("large", 4)
		w.diary("apply +large\napply +large\napply +large\napply +large")
		if took := time.Since(began); took != 0 {
			t.Errorf("the pieces took %v, want no pause between them", took)
		}
	})
}

func TestAFailureBetweenPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, pieces(1))
		w.listed()
		w.diary("refresh\napply ")
		w.follower.read()
		w.plane.refuse = []error{nil, errors.New("no memory")}
		w.putWide("large", 3)
		w.diary("apply +large\napply +large")
		w.told("")
		delete(w.plane.kernel, "large")
		w.pass(firstRetry)
		w.diary("refresh\napply +large") // everything at once
		w.told("large ->1")
	})
}

func TestAChangeOfTheHostIsWrittenWithAllPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, pieces(1))
		w.listed()
		w.diary("refresh\napply ")
		w.plane.onApply = func() {
			if len(w.syncs) == 1 {
				w.store.SetServiceCIDRs([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")})
			}
		}
		w.putWide("large", 5)
		w.diary("apply +large\napply +large")
	})
}

// A comparison that only looks for faults lets changes pass; one that follows a
// failure does not.
func TestChangesPassALongRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.put("a", 1)
		w.listed()
		w.diary("refresh\napply +a")
		w.plane.reads = 10 * time.Second
		w.compare(Request)
		w.pass(time.Second)
		w.diary("refresh")
		began := time.Now()
		w.put("b", 1)
		synctest.Wait()
		if waited := time.Since(began); waited != 0 {
			t.Errorf("the change waited %v", waited)
		}
		w.diary("apply +b\nrefresh")
		w.pass(time.Minute)
		w.diary("apply ")

		w.plane.refuse = []error{errors.New("no memory")}
		w.put("c", 1)
		w.pass(time.Second)
		w.put("d", 1)
		w.pass(time.Second)
		w.diary("apply +c\nrefresh")
		w.pass(time.Minute)
		w.diary("apply +c\napply +d")
	})
}

// However many changes arrive, a comparison comes to its end.
func TestChangesDoNotPreventAComparison(t *testing.T) {
	for _, tt := range []struct {
		cause Cause
		most  time.Duration
	}{{ForeignEdit, repairYields}, {Request, auditYields}, {Period, auditYields}} {
		t.Run(string(tt.cause), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := start(t, nil)
				w.listed()
				synctest.Wait()
				const read = 300 * time.Millisecond
				w.plane.reads = read
				began := time.Now()
				w.compare(tt.cause)
				compared := func(s Sync) bool { return s.Cause == tt.cause }
				for port := uint16(1); !slices.ContainsFunc(w.syncs, compared); port++ {
					w.put("a", port)
					w.pass(100 * time.Millisecond)
					if time.Since(began) > 2*auditYields {
						t.Fatal("it does not end")
					}
				}
				if took := time.Since(began); took > tt.most+2*read {
					t.Errorf("it took %v, want at most %v and a read", took, tt.most)
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
		w.putWide("a", 2)
		w.putWide("b", 3)
		w.listed()
		synctest.Wait()
		if len(w.problems) != 1 || w.problems[0].String() != "Service default/b: spec: 3 ports: too large, not programmed: at most 2" {
			t.Errorf("problems %v", w.problems)
		}
		b := cluster.Name{Namespace: "default", Name: "b"}
		if b := w.look().Routes.Service(b); len(b.Ports) != 0 || b.Ignored == "" {
			t.Errorf("the large Service is %+v, want it without ports and with the reason", b)
		}
		w.putWide("b", 4) // another size is no other problem
		w.putWide("b", 2)
		synctest.Wait()
		if len(w.problems) != 1 || len(w.look().Routes.Service(b).Ports) != 2 {
			t.Error("a Service that became smaller is not programmed")
		}
	})
}

// An edit by another program does not wait for a comparison that looks for faults.
func TestAnEditTakesPrecedenceOverAnAudit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.put("a", 1)
		w.listed()
		synctest.Wait()
		const read = 300 * time.Millisecond
		w.plane.reads = read
		w.compare(Period)
		busy := func() {
			for port := range uint16(20) {
				w.put("a", port+2)
				w.pass(100 * time.Millisecond)
			}
		}
		busy()
		began := time.Now()
		w.compare(ForeignEdit)
		busy()
		for _, s := range w.syncs {
			if s.Cause == ForeignEdit && s.Began.Sub(began) <= repairYields+2*read {
				return
			}
		}
		t.Errorf("no repair within %v of the edit", repairYields+2*read)
	})
}
