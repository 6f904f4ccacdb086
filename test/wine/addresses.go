//go:build linux

package wine

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// builtin has the libraries of Wine.
const builtin = "/usr/lib/x86_64-linux-gnu/wine/x86_64-windows"

// ServeAddresses makes the calls work that add addresses to the loopback interface and delete them, which Wine 8 lacks.
// After the test they fail.
func (p *Prefix) ServeAddresses() {
	p.t.Helper()
	l, err := new(net.ListenConfig).Listen(p.t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = l.Close() })
	go serveAddresses(l)
	system := filepath.Join(p.folder, "prefix", "drive_c", "windows", "system32")
	of := filepath.Join(builtin, "iphlpapi.dll")
	library, err := os.ReadFile(of)
	if err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(system, "wineiphlpapi.dll"), library, 0o600); err != nil {
		p.t.Fatal(err)
	}
	exports := filepath.Join(p.folder, "iphlpapi.def")
	if err := os.WriteFile(exports, []byte(p.forwards(of)), 0o600); err != nil {
		p.t.Fatal(err)
	}
	for _, name := range []string{"iphlpapi", "wineiphlpapi"} { // a variable does not reach services
		r := p.Run("reg", "add", `HKCU\Software\Wine\DllOverrides`, "/f", "/v", name, "/d", "native,builtin")
		if r.Code != 0 {
			p.t.Fatalf("replace %s: %+v", name, r)
		}
	}
	if err := os.Remove(filepath.Join(system, "iphlpapi.dll")); err != nil {
		p.t.Fatal(err)
	}
	p.compile(filepath.Join(system, "iphlpapi.dll"), "testdata/iphlpapi.c", exports,
		fmt.Sprintf("-DSERVER=%d", l.Addr().(*net.TCPAddr).Port), "-lws2_32")
}

// forwards returns a definition file that forwards the calls of a library, except the calls that iphlpapi.c has.
func (p *Prefix) forwards(library string) string {
	p.t.Helper()
	out, err := exec.CommandContext(p.t.Context(), "x86_64-w64-mingw32-objdump", "-p", library).Output()
	if err != nil {
		p.t.Fatalf("read %s: %v", library, err)
	}
	own := []string{
		"InitializeUnicastIpAddressEntry", "CreateUnicastIpAddressEntry",
		"DeleteUnicastIpAddressEntry", "GetUnicastIpAddressTable",
	}
	var b strings.Builder
	b.WriteString("LIBRARY iphlpapi.dll\nEXPORTS\n  " + strings.Join(own, "\n  ") + "\n")
	_, table, _ := strings.Cut(string(out), "[Ordinal/Name Pointer] Table")
	for _, m := range regexp.MustCompile(`(?m)^\s*\[\s*\d+\].* (\w+)$`).FindAllStringSubmatch(table, -1) {
		if !slices.Contains(own, m[1]) {
			fmt.Fprintf(&b, "  %s=wineiphlpapi.%[1]s\n", m[1])
		}
	}
	return b.String()
}

// Error codes of Windows.
const (
	success         = 0
	elementNotFound = 1168
)

// serveAddresses serves the requests of iphlpapi.c.
func serveAddresses(l net.Listener) {
	skipped := map[string]string{} // SkipAsSource of each address that was added
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		line, _ := bufio.NewReader(c).ReadString('\n')
		_, _ = fmt.Fprintf(c, "%d", answerAddress(strings.Fields(line), skipped))
		_ = c.Close()
	}
}

// answerAddress returns the answer to a request. Those to "list" are SkipAsSource of an address.
func answerAddress(request []string, skipped map[string]string) int {
	if len(request) != 4 {
		return elementNotFound
	}
	verb, addr, skip := request[0], request[1], request[3]
	if verb == "list" {
		skip, _ := strconv.Atoi(skipped[addr]) // 0 if it was not added
		return skip
	}
	result := changeAddress(request)
	if delete(skipped, addr); verb == "add" && result == success {
		skipped[addr] = skip
	}
	return result
}

func changeAddress(request []string) int {
	cmd := exec.Command("ip", "address", request[0], request[1]+"/"+request[2], "dev", "lo")
	if strings.Contains(request[1], ":") && request[0] == "add" {
		cmd.Args = append(cmd.Args, "nodad")
	}
	if cmd.Run() != nil {
		return elementNotFound
	}
	return success
}
