"""A transformer of equal blocks on two processes of one thread each, over gloo: torch_mesh.py single|pipeline|fsdp [blocks] [width] [steps]

The same model, batch and number of micro-batches as the job of bench/mesh.py: characters of a vocabulary of 73, sequences of 64, AdamW. Prints samples
per second of the median step."""
import os,sys,time,statistics,torch,torch.nn as nn,torch.distributed as dist,torch.multiprocessing as mp
KIND=sys.argv[1]; BLOCKS=int(sys.argv[2]) if len(sys.argv)>2 else 8; WIDTH=int(sys.argv[3]) if len(sys.argv)>3 else 256; STEPS=int(sys.argv[4]) if len(sys.argv)>4 else 8
HEADS,LENGTH,VOCABULARY,BATCH,GRAINS=4,64,73,64,8
class Block(nn.Module):
    def __init__(s):
        super().__init__(); s.n1=nn.LayerNorm(WIDTH); s.qkv=nn.Linear(WIDTH,3*WIDTH); s.o=nn.Linear(WIDTH,WIDTH); s.n2=nn.LayerNorm(WIDTH); s.a=nn.Linear(WIDTH,4*WIDTH); s.b=nn.Linear(4*WIDTH,WIDTH)
    def forward(s,x):
        b,t,_=x.shape; q,k,v=[y.view(b,t,HEADS,-1).transpose(1,2) for y in s.qkv(s.n1(x)).split(WIDTH,2)]
        x=x+s.o(nn.functional.scaled_dot_product_attention(q,k,v,is_causal=True).transpose(1,2).reshape(b,t,WIDTH)); return x+s.b(nn.functional.gelu(s.a(s.n2(x))))
class Embed(nn.Module):
    def __init__(s): super().__init__(); s.t=nn.Embedding(VOCABULARY,WIDTH); s.p=nn.Parameter(torch.zeros(LENGTH,WIDTH))
    def forward(s,x): return s.t(x)+s.p
def layers(): return [Embed(),*[Block() for _ in range(BLOCKS)],nn.LayerNorm(WIDTH),nn.Linear(WIDTH,VOCABULARY)]
def loss(y,t): return nn.functional.cross_entropy(y.reshape(-1,VOCABULARY),t.reshape(-1))
def run(r,n):
    torch.set_num_threads(1); torch.manual_seed(0)
    if n>1:
        os.environ.update(MASTER_ADDR='127.0.0.1',MASTER_PORT='29613',GLOO_SOCKET_IFNAME='lo'); dist.init_process_group('gloo',rank=r,world_size=n)
    x=torch.randint(VOCABULARY,(BATCH,LENGTH)); y=torch.randint(VOCABULARY,(BATCH,LENGTH)); all_=layers(); times=[]
    if KIND=='pipeline':
        from torch.distributed.pipelining import PipelineStage,Schedule1F1B
        half=1+BLOCKS//2; m=nn.Sequential(*(all_[:half] if r==0 else all_[half:])); o=torch.optim.AdamW(m.parameters(),lr=.003)
        s=Schedule1F1B(PipelineStage(m,r,n,torch.device('cpu')),GRAINS,loss_fn=loss)
        def step():
            o.zero_grad(); s.step(x) if r==0 else s.step(target=y); o.step()
    else:
        m=nn.Sequential(*all_)
        if KIND=='fsdp':
            from torch.distributed.fsdp import fully_shard
            from torch.distributed.device_mesh import init_device_mesh
            mesh=init_device_mesh('cpu',(n,))
            for l in m: fully_shard(l,mesh=mesh)
            fully_shard(m,mesh=mesh)
        o=torch.optim.AdamW(m.parameters(),lr=.003); own=slice(r*BATCH//n,(r+1)*BATCH//n); size=BATCH//GRAINS
        def step():
            o.zero_grad(); xs,ys=x[own].split(size),y[own].split(size)
            if KIND=='fsdp': xs,ys=[x[own]],[y[own]]
            for a,b in zip(xs,ys): (loss(m(a),b)/len(xs)).backward()
            o.step()
    for i in range(STEPS+2):
        if n>1: dist.barrier()
        t=time.perf_counter(); step()
        if n>1: dist.barrier()
        if i>1: times.append(time.perf_counter()-t)
    if r==0: print(f'torch {torch.__version__} {KIND} procs={n} samples/s={BATCH/statistics.median(times):.1f} best={BATCH/min(times):.1f}',flush=True)
    if n>1: dist.destroy_process_group()
if __name__=='__main__':
    if KIND=='single': run(0,1)
    else: mp.spawn(run,args=(2,),nprocs=2)
