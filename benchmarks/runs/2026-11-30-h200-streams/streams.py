# streams.py NAME COMMAND...: tokens/s, first token and gaps as a client sees them at 1, 32 and 128 streams (512 tokens in, 256 out, greedy).
# Raw sockets in PROCS processes, so that the client costs little: an event is counted where `data: {` is read, its time is that of the read.
import asyncio, json, multiprocessing as mp, os, random, subprocess, sys, time, signal
name, cmd = sys.argv[1], sys.argv[2:]; P=8123; MODEL=os.environ["MODELNAME"]
def body(seed, n_in, n_out):
    r=random.Random(seed); return json.dumps(dict(model=MODEL,prompt=[r.randrange(3,50000) for _ in range(n_in)],max_tokens=n_out,temperature=0,stream=True,ignore_eos=True)).encode()
async def one(b):
    a=time.perf_counter(); r,w=await asyncio.open_connection("127.0.0.1",P)
    w.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"%len(b)+b)
    times=[]; rest=b""; reads=0
    while True:
        d=await r.read(1<<16)
        if not d: break
        n=time.perf_counter(); d=rest+d; c=d.count(b'data: {'); times+= [n-a]*c; rest=d[-6:] if not d.endswith(b"\n") else b""
    w.close(); return times
def proc(seeds, conc, n_in, n_out, q):
    async def main():
        sem=asyncio.Semaphore(conc); out=[]
        async def go(s):
            async with sem: out.append(await one(body(s,n_in,n_out)))
        await asyncio.gather(*[go(s) for s in seeds]); return out
    q.put(asyncio.run(main()))
def run(c, n, n_in, n_out, seed):
    k=1 if c==1 else 4; q=mp.Queue(); a=time.perf_counter()
    ps=[mp.Process(target=proc,args=(range(seed+i*(n//k),seed+(i+1)*(n//k)),max(1,c//k),n_in,n_out,q)) for i in range(k)]
    [p.start() for p in ps]; res=sum((q.get() for _ in ps),[]); [p.join() for p in ps]; d=time.perf_counter()-a
    toks=sum(map(len,res)); ttft=sorted(t[0] for t in res if t); gaps=sorted(y-x for t in res for x,y in zip(t,t[1:])); pc=lambda x,p: round(1e3*x[min(len(x)-1,int(len(x)*p))],2) if x else None
    span=[(len(t)-1)/(t[-1]-t[0]) for t in res if len(t)>1]; span.sort()
    return dict(streams=c,req=n,tok_s=round(toks/d,1),per_stream=round(span[len(span)//2],1) if span else None,ttft_p50=pc(ttft,.5),ttft_p99=pc(ttft,.99),gap_p50=pc(gaps,.5),gap_p90=pc(gaps,.9),gap_p99=pc(gaps,.99),zero=round(sum(g<1e-4 for g in gaps)/max(1,len(gaps)),3),want=n*n_out,got=toks)
if __name__=="__main__":
    t0=time.time(); srv=subprocess.Popen(cmd,stdout=open(f"/tmp/{name}.log","w"),stderr=subprocess.STDOUT,start_new_session=True)
    import urllib.request
    while time.time()-t0<120:
        try: urllib.request.urlopen(f"http://127.0.0.1:{P}/health",timeout=1); break
        except Exception: time.sleep(.1)
    seed=int(os.environ.get("SEED","1"))*100000
    run(1,2,512,32,seed+90000); time.sleep(1)
    for c,n,w in [x for x in ((1,16,0),(32,128,32),(128,384,128)) if str(x[0]) in os.environ["LIST"].split(",")]:
        if w: run(c,w,512,32,seed+50000+c)
        print(name,json.dumps(run(c,n,512,256,seed+c*100)),flush=True)
    try: os.killpg(srv.pid,signal.SIGTERM); srv.wait(20)
    except Exception: os.killpg(srv.pid,signal.SIGKILL)
    print(open(f"/tmp/{name}.log").read()[:300].replace("\n"," | ")) if os.environ.get("LOG") else None
