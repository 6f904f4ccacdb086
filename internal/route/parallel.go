package route

import (
	"runtime"
	"slices"
	"sync"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

// Services are compiled in blocks. Several workers compile the Services of a block in parallel.
const (
	block   = 4096
	portion = 64 // for fewer Services another worker does not pay
)

// compiled is a Service that was compiled, before the table has it.
type compiled struct {
	name     cluster.Name
	record   *record // nil: the Service does not exist
	made     *Service
	problems []Problem   // without lost claims
	lost     []candidate // frontends that it asks for, but others own
}

// compile computes the routes of Services. It changes nothing.
func (c *Compiler) compile(names []cluster.Name) []compiled {
	list := make([]compiled, len(names))
	workers := min(runtime.GOMAXPROCS(0), (len(names)+portion-1)/portion)
	if workers <= 1 {
		c.compileInto(list, names, &c.builder)
		return list
	}
	var running sync.WaitGroup
	each := (len(names) + workers - 1) / workers
	for begin := 0; begin < len(names); begin += each {
		end := min(begin+each, len(names))
		running.Go(func() { c.compileInto(list[begin:end], names[begin:end], &builder{view: c.builder.view}) })
	}
	running.Wait()
	return list
}

func (c *Compiler) compileInto(list []compiled, names []cluster.Name, by *builder) {
	key := recordOf(cluster.Name{})
	for i, name := range names {
		list[i].name, key.service.Name = name, name
		if r, exists := c.records.Get(key); exists {
			list[i] = c.compileOne(r, by)
		}
	}
}

func (c *Compiler) compileOne(r *record, by *builder) compiled {
	made, problems := by.service(r.state, c.claims)
	if excess := c.excess(made); excess != nil {
		made = &Service{Name: made.Name, Ignored: excess.Reason + ": " + excess.Value}
		problems = []Problem{*excess}
	}
	return compiled{r.service.Name, r, made, problems, slices.Clone(by.lost)}
}

// excess returns the problem of a Service that is too large for the data plane; nil otherwise.
func (c *Compiler) excess(svc *Service) *Problem {
	if c.opt.Excess == nil {
		return nil
	}
	size, limit := c.opt.Excess(svc)
	if limit == "" {
		return nil
	}
	return &Problem{
		Object: "Service " + svc.Name.String(), Field: tooLarge, Value: size, Reason: "too large, not programmed: " + limit,
	}
}
