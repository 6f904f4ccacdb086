package machine

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"sync"
	"time"
)

// Variable is the environment variable with the slowdown of a whole run of tests, such as 2.5.
const Variable = "TEST_SLOWDOWN"

// MaxSlowdown is the largest slowdown. Scaled by more, bounds would exceed the timeout of go test.
const MaxSlowdown = 10

// Scale returns a bound for this machine, from the bound that suits a fast idle one.
func Scale(d time.Duration) time.Duration { return time.Duration(float64(d) * Slowdown()) }

// Slowdown returns how many times slower than a fast idle machine this one is; at least 1, at most MaxSlowdown. Without
// Variable the first call takes half a second. It panics if the value of Variable is invalid.
func Slowdown() float64 { return slowdown() }

var slowdown = sync.OnceValue(func() float64 {
	text := os.Getenv(Variable)
	if text == "" {
		return Measure().Slowdown()
	}
	f, err := parse(text)
	if err != nil {
		panic(err) // a mistake of the runner
	}
	return f
})

func parse(text string) (float64, error) {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(f) || f < 1 || f > MaxSlowdown {
		return 0, fmt.Errorf("%s=%s: want a number from 1 to %d", Variable, text, MaxSlowdown)
	}
	return f, nil
}
