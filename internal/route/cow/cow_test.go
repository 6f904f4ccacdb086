package cow

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
)

type pair struct{ key, value int }

func byKey(a, b pair) int { return cmp.Compare(a.key, b.key) }

// A Set holds the same as a map after the same changes, and earlier clones hold the same as
// the map at their time.
func TestSetAgainstMap(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	set, model := New(byKey), map[int]int{}
	type checkpoint struct {
		clone Set[pair]
		model map[int]int
	}
	var checkpoints []checkpoint
	for i := range 20_000 {
		key := random.IntN(3000)
		if random.IntN(3) == 0 {
			set.Delete(pair{key: key})
			delete(model, key)
		} else {
			set.Put(pair{key, i})
			model[key] = i
		}
		if i%1000 == 0 {
			checkpoints = append(checkpoints, checkpoint{set.Clone(), maps.Clone(model)})
		}
	}
	for _, m := range append(checkpoints, checkpoint{set, model}) {
		var want []pair
		for _, key := range slices.Sorted(maps.Keys(m.model)) {
			want = append(want, pair{key, m.model[key]})
		}
		if got := slices.Collect(m.clone.All()); !slices.Equal(got, want) || m.clone.Len() != len(want) {
			t.Fatalf("%d values, Len %d, want %d", len(got), m.clone.Len(), len(want))
		}
		for key := range 3000 {
			if got := m.clone.Get(pair{key: key}).value; got != m.model[key] {
				t.Fatalf("key %d: got %d, want %d", key, got, m.model[key])
			}
		}
	}
}

// Clones are read while the original changes. The race detector verifies this.
func TestClonesAreReadDuringChanges(t *testing.T) {
	set := New(byKey)
	for i := range 1000 {
		set.Put(pair{i, 0})
	}
	var readers sync.WaitGroup
	for round := 1; round <= 50; round++ {
		clone := set.Clone()
		readers.Go(func() {
			for p := range clone.All() {
				if p.value >= round {
					t.Errorf("the clone before round %d has a value of round %d", round, p.value)
					return
				}
			}
		})
		for i := range 1000 {
			set.Put(pair{i, round})
		}
	}
	readers.Wait()
}

// The cost of the first change after Clone does not depend on the size.
func BenchmarkPutAfterClone(b *testing.B) {
	for _, n := range []int{1_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			set := New(byKey)
			for i := range n {
				set.Put(pair{i, 0})
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				_ = set.Clone()
				set.Put(pair{i % n, i})
			}
		})
	}
}
