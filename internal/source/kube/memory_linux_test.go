package kube

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/internal/testing/texttest"
	"github.com/sluice-proxy/sluice/test/harness"
)

// BenchmarkMemory starts the program in a network namespace, with an API server that has n Services of three endpoints,
// and prints its memory: at the peak, some seconds later, and the live heap then. The environment variable SLUICE
// selects another program to measure. With PLACES=1 it also prints which places in the code allocated the live heap;
// the program takes a little more memory then.
func BenchmarkMemory(b *testing.B) {
	path, err := harness.ProgramIn(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	var rows []memory
	for _, n := range []int{0, 1000, 10_000, 50_000, 100_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			var m memory
			for b.Loop() {
				m = measure(b, path, n)
			}
			b.ReportMetric(m.peak, "peak-MB")
			b.ReportMetric(m.rss, "rss-MB")
			b.ReportMetric(m.live, "live-MB")
			rows = append(rows, m)
		})
	}
	fmt.Print(memoryTable(rows))
}

// memory is the memory of the program in MB, with a number of Services.
type memory struct {
	services              int
	loaded, cpu           time.Duration // from the start until all are in the kernel
	peak, rss, file, live float64
	idle                  float64 // share of a core in the seconds after, in percent
}

func memoryTable(rows []memory) string {
	var w strings.Builder
	fmt.Fprintln(&w,
		"| Services | loaded, s | CPU, s | peak, MB | later, MB | of it file, MB | live heap, MB "+
			"| each further, KB: peak | live | idle, % |")
	fmt.Fprintln(&w, "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
	for i, m := range rows {
		var peak, live float64
		if i > 0 {
			more := float64(m.services - rows[i-1].services)
			peak, live = (m.peak-rows[i-1].peak)*1024/more, (m.live-rows[i-1].live)*1024/more
		}
		fmt.Fprintf(&w, "| %d | %.2f | %.2f | %.1f | %.1f | %.1f | %.1f | %.2f | %.2f | %.3f |\n",
			m.services, m.loaded.Seconds(), m.cpu.Seconds(), m.peak, m.rss, m.file, m.live, peak, live, m.idle)
	}
	return w.String()
}

// idleTime is the time without changes before each measurement.
const idleTime = 5 * time.Second

// measure runs the program once, and measures it.
func measure(b *testing.B, path string, n int) memory {
	b.Helper()
	netns := kerneltest.Namespace(b)
	api := newLargeCluster(b, netns, n)
	p := startProgram(b, netns, path, api.kubeconfig())
	m := memory{services: n, loaded: p.waitForServices(n)}
	m.cpu = p.cpu()
	time.Sleep(idleTime)
	before := p.cpu()
	time.Sleep(idleTime)
	m.idle = 100 * (p.cpu() - before).Seconds() / idleTime.Seconds()
	m.peak, m.rss, m.file = p.status("VmHWM"), p.status("VmRSS"), p.status("RssFile")
	m.live = p.live()
	if os.Getenv("PLACES") != "" {
		fmt.Printf("\n%d Services\n%s", n, places(b, p.get("/debug/pprof/heap")))
	}
	return m
}

// testProgram is the program, running in a network namespace.
type testProgram struct {
	b     *testing.B
	netns int
	cmd   *exec.Cmd
	began time.Time
	log   *texttest.Buffer
}

const diagnosticsAddr = "127.0.0.1:10249"

// startProgram starts the program. It ends with the benchmark, or with this process.
func startProgram(b *testing.B, netns int, path, kubeconfig string) *testProgram {
	b.Helper()
	p := &testProgram{b: b, netns: netns, log: &texttest.Buffer{}}
	p.cmd = exec.Command(path, "--kubeconfig="+kubeconfig, "--hostname-override=node-000",
		"--cluster-cidr=10.0.0.0/8", "--profiling", "--metrics-bind-address="+diagnosticsAddr)
	p.cmd.Stderr = p.log
	if os.Getenv("PLACES") != "" {
		p.cmd.Env = append(os.Environ(), "GODEBUG=memprofilerate=4096")
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error), make(chan struct{})
	p.began = time.Now()
	go func() {
		defer close(ended)
		runtime.LockOSThread() // the program dies with this thread, which is in the namespace
		err := unix.Setns(netns, unix.CLONE_NEWNET)
		if err == nil {
			err = p.cmd.Start()
		}
		started <- err
		if err == nil {
			_ = p.cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		b.Fatalf("start the program: %v", err)
	}
	b.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
		<-ended
	})
	return p
}

// waitForServices waits until all Services are in the kernel, and returns the time since the start.
func (p *testProgram) waitForServices(n int) time.Duration {
	all := regexp.MustCompile(`msg=Synced services=(\d+)`)
	for time.Since(p.began) < 5*time.Minute {
		for _, m := range all.FindAllStringSubmatch(p.log.String(), -1) {
			if got, _ := strconv.Atoi(m[1]); got >= n {
				return time.Since(p.began)
			}
		}
		time.Sleep(time.Millisecond)
	}
	p.b.Fatalf("%d Services are not in the kernel: %s", n, p.log.String())
	return 0
}

// status returns a line of /proc/PID/status, in MB.
func (p *testProgram) status(name string) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		p.b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); words[0] == name+":" {
			kb, _ := strconv.ParseFloat(words[1], 64)
			return kb / 1024
		}
	}
	p.b.Fatalf("no %s in the status of the program", name)
	return 0
}

// cpu returns the CPU time of all threads of the program.
func (p *testProgram) cpu() time.Duration {
	var sum time.Duration
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p.cmd.Process.Pid))
	for _, thread := range threads {
		text, _ := os.ReadFile(thread)
		ran, _, _ := strings.Cut(string(text), " ")
		ns, _ := strconv.ParseInt(ran, 10, 64)
		sum += time.Duration(ns)
	}
	return sum
}

// get reads a page of the program's diagnostics.
func (p *testProgram) get(page string) []byte {
	var body []byte
	kerneltest.Do(p.b, p.netns, func() error {
		conn, err := net.Dial("tcp", diagnosticsAddr)
		if err != nil {
			return err
		}
		client := http.Client{Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext:       func(context.Context, string, string) (net.Conn, error) { return conn, nil },
		}}
		answer, err := client.Get("http://" + diagnosticsAddr + page)
		if err != nil {
			return err
		}
		defer func() { _ = answer.Body.Close() }()
		body, err = io.ReadAll(answer.Body)
		return err
	})
	return body
}

// live returns the size of the live heap in MB.
func (p *testProgram) live() float64 {
	text := p.get("/debug/pprof/heap?gc=1&debug=1")
	found := regexp.MustCompile(`# HeapAlloc = (\d+)`).FindSubmatch(text)
	if found == nil {
		p.b.Fatalf("the profile lacks the size of the heap: %.200s", text)
	}
	bytes, _ := strconv.ParseFloat(string(found[1]), 64)
	return bytes / (1 << 20)
}

// places returns the top entries of a heap profile.
func places(b *testing.B, profile []byte) string {
	b.Helper()
	path := filepath.Join(b.TempDir(), "heap")
	if err := os.WriteFile(path, profile, 0o600); err != nil {
		b.Fatal(err)
	}
	out, err := exec.Command("go", "tool", "pprof", "-sample_index=inuse_space", "-unit=kb", "-nodecount=30",
		"-top", path).CombinedOutput()
	if err != nil {
		b.Fatalf("read the heap profile: %v\n%s", err, out)
	}
	return string(out)
}
